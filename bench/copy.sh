#!/usr/bin/env bash
# Strided pulls beside memcpy (bench/copy.c).
exec "${BUILD:-build/release}/bench/copy" "$@"
