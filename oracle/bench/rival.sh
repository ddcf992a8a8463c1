#!/bin/sh
# Runs one of these scripts as the honest rival: two threads, and glibc told to keep and reuse memory in huge pages.
# Without that PyTorch spends 20-30 % of a step on fresh pages.
#   PYTHON=../venv/bin/python oracle/bench/rival.sh gemm.py --repeat 7
here=$(dirname "$0")
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1000000000000 GLIBC_TUNABLES=glibc.malloc.hugetlb=1
export OMP_NUM_THREADS="${THREADS:-2}" HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
script=$1
shift
exec "${PYTHON:-python3}" "$here/$script" "$@"
