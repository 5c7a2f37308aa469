#!/usr/bin/env bash
# The certificate's cost beside the copy that it goes with (bench/certificate.c).
exec "${BUILD:-build/release}/bench/certificate" "$@"
