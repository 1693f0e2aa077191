// Removing what this program wrote and nothing else, however it came to stand beside a user's files; and what it finished.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace fidelio {

// An OwnNames tells whether the program writes a file or a folder of this name into a folder; names are relative to it:
// "a", "a/b".
using OwnNames = std::function<bool(const std::string& name)>;
// Returns what a folder holds, at any depth, that is not ours, sorted: nothing where the folder is not there. Temporary
// names of what is ours are ours, too.
std::vector<std::string> foreign_in(const std::string& folder, const OwnNames& ours);
// Removes what is ours in a folder, and the folder itself where nothing else is left in it: then by a rename first, so that
// nobody finds half of it under its name (it is FOLDER.removed.PID.fidelio.tmp meanwhile). Returns foreign_in() of what
// stays. A link to a folder stays, emptied.
std::vector<std::string> remove_ours(const std::string& folder, const OwnNames& ours);

// The files and folders that were finished in this process and are still there, the folders first: what to name where
// something fails afterwards.
std::vector<std::string> finished_outputs();

}  // namespace fidelio
