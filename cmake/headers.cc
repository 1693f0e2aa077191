// This file is empty. CMake precompiles the headers of a target, and the target for them needs a source.
