#!/usr/bin/env bash
# Moves of 1.1 GiB of state over 4 ranks, through arenas and MPI, beside memcpy (bench/move.c).
. bench/lib/mpi_env.sh
exec mpirun.openmpi -n 4 "${BUILD:-build/release}/bench/move" "$@"
