#!/usr/bin/env bash
# One matrix to another grid of 4 ranks: beside MPI_Alltoallw, ScaLAPACK's p?gemr2d and memcpy
# (bench/redistribute.c).
. bench/lib/mpi_env.sh
export OMP_NUM_THREADS=1
exec mpirun.openmpi -n 4 "${BUILD:-build/release}/bench/redistribute" "$@"
