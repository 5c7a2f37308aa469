# How tests are run, those of tests/ and of examples/ alike.

# What a program needs in its environment to start MPI ranks on any machine, as root or not, with more
# ranks than cores; and what the sanitizers are told about the libraries under us.
set(RS_TSAN_ENV "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
set(RS_MPI_ENV "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    "OMPI_MCA_rmaps_base_oversubscribe=1" "OMPI_MCA_hwloc_base_binding_policy=none"
    "OMPI_MCA_mpi_yield_when_idle=1"
    "ASAN_OPTIONS=fast_unwind_on_malloc=0" # MPI is built without frame pointers
    "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
    "${RS_TSAN_ENV}")

# rs_mpi_test(name program ranks labels [argument...]): runs a program on so many ranks. Label mpich
# beside quick or full for the tests that the MPICH build runs too.
function(rs_mpi_test name program ranks labels)
    add_test(NAME ${name} COMMAND ${RS_MPIRUN} -n ${ranks} $<TARGET_FILE:${program}> ${ARGN})
    set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT 300 PROCESSORS ${ranks}
        ENVIRONMENT "${RS_MPI_ENV}" SKIP_RETURN_CODE 77)
endfunction()
