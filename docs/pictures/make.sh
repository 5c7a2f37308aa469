#!/usr/bin/env bash
# Draws the pictures of docs/layouts.md anew: docs/pictures/make.sh [COMMAND [FOLDER]], build/reshard into this folder
# unless given.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
reshard=$(realpath "${1:-$here/../../build/reshard}")
folder=${2:-$here}

# draw NAME MODEL FROM TO
draw() {
    "$reshard" plan --model "$2" --from "$3" --to "$4" --svg "$folder/$1.svg" --force >/dev/null
}

draw tp-pp-dp llama-tiny dp=8 tp=2,pp=2,dp=2
draw zero llama-tiny dp=4,zero=1 dp=4,zero=3
draw zero-cut llama-tiny tp=2,dp=3,zero=3 tp=2,dp=3,zero=3,zero_cut=dim0
draw shard llama-tiny dp=4,zero=1 dp=4,zero=1,shard=2
draw cp llama-tiny tp=2,dp=4,zero=1 tp=2,cp=2,dp=2,zero=1
draw vpp llama-20m pp=2,dp=2 pp=2,vpp=2,dp=2
draw stages llama-20m pp=3 pp=3,stages=0-1/2-3/4-7
draw order llama-tiny tp=2,dp=2,pp=2 tp=2,dp=2,pp=2,order=pp-dp-tp
draw experts mixtral-tiny dp=8,zero=1 dp=8,ep=4,zero=1
draw etp mixtral-tiny tp=4,dp=2,ep=2,zero=1 tp=4,dp=2,ep=4,etp=2,zero=1
draw layers deepseek-tiny dp=4,ep=4 pp=2,dp=3,ep=3
