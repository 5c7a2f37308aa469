# make install: libraries, headers, command, pkg-config and CMake package files.
