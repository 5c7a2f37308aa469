# What reshard builds on. MPI is found through the wrapper of the chosen implementation, since Debian
# installs both side by side.
find_package(PkgConfig REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
find_package(Threads REQUIRED)

find_program(RS_MPICC NAMES mpicc.${RS_MPI} REQUIRED)
find_program(RS_MPIRUN NAMES mpirun.${RS_MPI} REQUIRED)
set(MPI_C_COMPILER ${RS_MPICC})
set(MPIEXEC_EXECUTABLE ${RS_MPIRUN})
find_package(MPI REQUIRED COMPONENTS C)

# OpenBLAS with OpenMP threads: Debian's pthread build loses its threads' time to locking.
find_library(RS_OPENBLAS NAMES openblas
    PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH)
if(NOT RS_OPENBLAS)
    find_library(RS_OPENBLAS NAMES openblas REQUIRED)
endif()
find_path(RS_CBLAS_INCLUDE NAMES cblas.h
    PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp
          /usr/include/${CMAKE_LIBRARY_ARCHITECTURE} REQUIRED)
