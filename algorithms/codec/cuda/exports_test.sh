#!/usr/bin/env bash
# exports_test.sh LIBRARY: it shows the interfaces of piece_kernels.h and mean_kernel.h, and nothing else of its own.
# What the C++ library or a sanitizer has in every program may be seen.
set -uo pipefail
wanted="pelton_decode_pieces pelton_encode_pieces pelton_kernels_version pelton_merge_pieces pelton_weighted_mean"
shown=$(nm --dynamic --defined-only "$1" | awk '{ print $3 }' | LC_ALL=C sort | grep -vE '^(_ZN?K?St|__)' | xargs)
[ "$shown" = "$wanted" ] || { echo "FAILED: $1 shows '$shown', not '$wanted'"; exit 1; }
