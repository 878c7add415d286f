#!/usr/bin/env bash
# ImageNet with 100 labels a class, as in the FlexMatch paper: convert, train on N devices, evaluate.
#
#   tools/imagenet_100k.sh ILSVRC [--store DIR] [--out DIR] [--nproc N] [--size PIXELS] [--format F] [key=value ...]
#
# ILSVRC holds train/ and val/ as image-net.org gives them. Run it again to go on after an
# interruption: a store that is there is kept, and training resumes. One machine; for several see
# docs/many_machines.md.
set -euo pipefail

usage() {
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 0
}

refuse() {
    printf 'error: %s\n  fix: type %s\n' "$1" "$(sed -n '4s/^# *//p' "$0")" >&2
    exit 2
}

python=${PYTHON:-python3}
raw="" store=data/imagenet out=runs/imagenet-100k nproc="" words=() convert=()
while (($#)); do
    case $1 in
    --store | --out | --nproc | --size | --format) (($# > 1)) || refuse "$1 wants a value" ;;&
    --store) store=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --nproc) nproc=$2 && shift 2 ;;
    --size) convert+=(--size "$2") && words+=("image_size=$2") && shift 2 ;;
    --format) convert+=(--format "$2") && shift 2 ;;
    -h | --help) usage ;;
    -*) refuse "there is no option $1" ;;
    *=*) words+=("$1") && shift ;;
    *) [[ -z $raw ]] || refuse "$raw and $1 can't both be ILSVRC"; raw=$1 && shift ;;
    esac
done
[[ -n $raw ]] || refuse "the folder ILSVRC is missing"
# One process a GPU; without GPUs one.
nproc=${nproc:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}
[[ $nproc =~ ^[1-9][0-9]*$ ]] || refuse "--nproc $nproc is not a number of processes"

if [[ ! -f $store/dataset.json ]]; then
    "$python" -m fastssl convert imagenet "$store" --root "$raw" "${convert[@]}"
fi
"$python" -m torch.distributed.run --standalone --nproc-per-node="$nproc" --max-restarts=3 \
    -m fastssl train imagenet "store=$store" "${words[@]}" --out "$out" --resume
"$python" -m fastssl eval "$out"
