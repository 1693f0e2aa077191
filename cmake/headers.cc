// Holds nothing: CMake precompiles the headers of a target, and this target has no other source.
