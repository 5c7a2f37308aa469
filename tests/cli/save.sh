#!/usr/bin/env bash
# Saving and going on: a resumed run is the run that was not interrupted, under every layout; saves that are
# killed leave the checkpoint before (J02, J03); what differs from the checkpoint is refused (G06).
set -u
. "$(dirname "$0")/lib.sh"

# Names that no other run of this test has: memory and processes are looked for by them.
for name in save other hurt term kill clock long init; do
    declare "sv$name=sv$$-$name"
done

seq 1 6000 >data
small=(--model llama-tiny --data data --seq 16 --global-batch 4 --micro-batch 2)
train=(train "${small[@]}" --steps 12)

# same JOB TOLERANCE: every step once, with the losses of the uninterrupted run.
same() {
    check "losses of $1" python3 -c "
import json
def losses(job):
    lines = [l for l in map(json.loads, open(job + '/metrics.jsonl')) if 'loss' in l]
    assert [l['step'] for l in lines] == list(range(1, 13)), (job, [l['step'] for l in lines])
    return [(l['loss'], l['samples'], l['lr']) for l in lines]
for a, b in zip(losses('$svsave'), losses('$1')):
    assert abs(a[0] - b[0]) <= $2 * abs(a[0]) and a[1:] == b[1:], (a, b)
"
}
# hashes PATH: of all tensors and roles.
hashes() {
    timeout 120 "$reshard" inspect "$1" --hash --json | python3 -c "
import json, sys
for t in json.load(sys.stdin)['tensors']:
    print(t['name'], t['role'], t['sha256'])"
}

expect 0 "saved step 12: $svsave/checkpoints/step-00000012" "${train[@]}" --layout tp=2 --job $svsave --save-every 4
check "four files" test -e $svsave/checkpoints/step-00000004/manifest.json -a \
    -e $svsave/checkpoints/step-00000008/rank-00001.safetensors
cp -r $svsave start
check "the data files are safetensors" python3 -c "
import json, struct
f = open('$svsave/checkpoints/step-00000004/rank-00000.safetensors', 'rb')
head = json.loads(f.read(struct.unpack('<Q', f.read(8))[0]))
assert head['__metadata__']['step'] == '4' and any('/exp_avg[' in name for name in head), head
"

# The same layout: bit for bit. Others: within 1e-5, and reading no byte more than their shards have.
expect 0 'goes on from step 8' train --resume $svsave@8
same $svsave 0
check "bit for bit" diff <(hashes start/checkpoints/step-00000012) <(hashes $svsave/checkpoints/step-00000012)
for layout in dp=2,zero=1 pp=2 tp=3,order=dp-tp-pp; do
    rm -rf $svother
    cp -r start $svother
    expect 0 'finished: 12 steps' train --resume $svother@4 --layout "$layout" --save-on-exit off
    same $svother 1e-5
done
check "bytes read" python3 -c "
import json
e, = [l for l in map(json.loads, open('$svsave/metrics.jsonl')) if l.get('event') == 'resume']
assert 0.95 * 35613696 < e['bytes_read'] < 1.06 * 35613696, e
"

# What differs is refused, unless it is meant.
refuse 2 '--lr: the run has 0.0003' train --resume start --lr 1e-3
refuse 2 '--seq: the run has 16' train --resume start --seq 8
refuse 2 '--global-batch: .*leave the option out$' train --resume start --global-batch 8
refuse 2 "found 'seq'" train --resume start --seq 8 --override seq
refuse 1 'holds an earlier run .*--resume' "${train[@]}" --layout tp=2 --job start
refuse 1 'step-00000005: ' train --resume start@5
refuse 1 'no checkpoint' train --resume nowhere
expect 0 'step 14/14' train --resume start --steps 14 --override steps --global-batch 4

# A damaged checkpoint is named and passed over; a pointer to nothing is an error.
cp -r $svsave $svhurt
printf X | dd of=$svhurt/checkpoints/step-00000012/rank-00000.safetensors bs=1 seek=300000 conv=notrunc 2>/dev/null
expect 0 'step 12 is passed over: .*content sum' train --resume $svhurt
same $svhurt 0
printf X | dd of=$svhurt/checkpoints/step-00000012/manifest.json bs=1 seek=2000 conv=notrunc 2>/dev/null
expect 0 'step 12 is passed over: .*manifest.json' train --resume $svhurt
same $svhurt 0
printf step-00000099 >$svhurt/checkpoints/latest
refuse 1 'step-00000099.*not there; checkpoints here: step-00000012, step-00000008' train --resume $svhurt

# SIGTERM: the step is finished, saved, and the exit code asks for more.
"$reshard" "${train[@]}" --layout tp=2 --job $svterm --steps 100000 >$svterm.log 2>&1 &
job=$!
until_true 30 grep -q '^step *4/' $svterm.log
check "save on request" bash -c "'$reshard' save $svterm | grep -E '^saved step [0-9]+: $svterm/checkpoints'"
kill -USR1 $job
wait $job
[ $? -eq 75 ] && grep -q '^saved step' $svterm.log
verdict "SIGUSR1 saves and exits with 75" $? "$(tail -5 $svterm.log)"
last=$(sed 's/step-0*//' $svterm/checkpoints/latest)
expect 0 "goes on from step $last" train --resume $svterm --steps $((last + 2)) --override steps

# Killed at many moments of saves that follow each other closely: what is there is always whole.
for delay in 0.3 0.45 0.6 0.8; do
    rm -rf $svkill
    "$reshard" "${train[@]}" --layout tp=2 --job $svkill --save-every 1 --keep 3 >$svkill.log 2>&1 &
    job=$!
    until_true 30 grep -q '^saved step 1' $svkill.log
    sleep $delay
    kill -9 $job
    wait $job 2>/dev/null
    until_true 30 bash -c "! pgrep -f -- '--job $svkill( |\$)'"
    expect 0 'finished: 12 steps' train --resume $svkill
    same $svkill 0
    check "nothing unfinished is left" bash -c "! ls $svkill/checkpoints | grep tmp"
done

# By the clock: while it trains where the time is short, never where it is long.
clock=(train "${small[@]}" --layout dp=1 --save-on-exit off)
expect 0 "^saved step [1-5]: $svclock" "${clock[@]}" --steps 6 --job $svclock --save-every-minutes 0.0001
expect 0 'finished: 3 steps' "${clock[@]}" --steps 3 --job $svlong --save-every-minutes 60
check "nothing is saved before its time" test ! -e $svlong/checkpoints/latest

# Weights of another checkpoint, under another layout.
expect 0 'finished: 2 steps' train "${small[@]}" --steps 2 --layout pp=2 --job $svinit --save-on-exit off \
    --init start
check "it began with trained weights" python3 -c "
import json
first = next(l['loss'] for l in map(json.loads, open('$svinit/metrics.jsonl')) if 'event' not in l)
assert first < 4.5, first
"
check_clean "sv$$-"
finish
