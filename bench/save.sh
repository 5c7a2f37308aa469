#!/usr/bin/env bash
# The pause of an asynchronous save beside memcpy of as many bytes (bench/save.c).
exec "${BUILD:-build/release}/bench/save" "$@"
