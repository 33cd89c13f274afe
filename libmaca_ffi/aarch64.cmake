# Compiles for Arm on another processor: Debian's g++-aarch64-linux-gnu, and programs run by qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;/usr/aarch64-linux-gnu)
# Libraries are found by their packages; Python's headers are alike for every processor of 64 bits.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
