// This file removes files that this program wrote, and nothing else that stands beside them in a user's folder. It also
// lists the outputs that this process has finished.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace fidelio {

// An OwnNames tells whether the program writes a file or a folder of this name into a folder. Names are relative to the
// folder, as in "a" or "a/b".
using OwnNames = std::function<bool(const std::string& name)>;
// Returns, sorted, what a folder holds at any depth that is not ours. The list is empty where the folder does not
// exist. Temporary names of files that are ours count as ours.
std::vector<std::string> foreign_in(const std::string& folder, const OwnNames& ours);
// Removes what is ours in a folder, and the folder itself where nothing else is left in it. In that case the folder is
// first renamed to FOLDER.removed.PID.fidelio.tmp, so nobody finds half of it under its name. Returns the foreign_in()
// of what stays. A link to a folder stays, and the folder that it names is emptied.
std::vector<std::string> remove_ours(const std::string& folder, const OwnNames& ours);

// Returns the files and folders that this process finished and that still exist, the folders first. A message names
// them where something fails afterwards.
std::vector<std::string> finished_outputs();

}  // namespace fidelio
