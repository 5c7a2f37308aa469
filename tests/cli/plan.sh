#!/usr/bin/env bash
# reshard plan: figures that can be worked out by hand, JSON, SVG.
set -u
pictures=$(realpath "$(dirname "$0")/../../docs/pictures")
. "$(dirname "$0")/lib.sh"

tiny=(--model llama-tiny --dtype fp32)

# tp=2 to one rank: rank 0 needs everything that rank 1 alone holds: half of every cut tensor in three
# roles; the norms (9 vectors of 256) it has.
half='(j["model"]["parameters"] - 9 * 256) // 2 * 4 * 3'
holds "j['bytes_moved'] == $half == j['bytes_minimum'] == j['rank_bytes_max']" \
    plan "${tiny[@]}" --from tp=2 --to tp=1 --json
# The other way nobody needs what he does not hold... but rank 1, all of its half.
holds "j['bytes_moved'] == $half + 9 * 256 * 12" plan "${tiny[@]}" --from tp=1 --to tp=2 --json
# ZeRO-1 over two replicas drops halves; nothing travels.
holds 'j["bytes_moved"] == 0 == j["bytes_minimum"]' plan "${tiny[@]}" --from dp=2 --to dp=2,zero=1 --json
# The same layout: everything stays where it lies.
holds 'j["bytes_moved"] == 0 and j["bytes_self"] == 0 and
    j["bytes_adopted"] == 2 * j["model"]["state_bytes"]' plan "${tiny[@]}" --from dp=2 --to dp=2 --json
# The peak in safe mode is at least both states less what is kept.
holds 'j["peak_safe"] >= j["peak_tight"] >=
    max(j[s]["state_bytes"]["total"]["max"] for s in ("from", "to"))' \
    plan "${tiny[@]}" --from tp=4 --to pp=2,dp=2,zero=1 --json
holds '0 < j["plan_seconds_median"] <= j["plan_seconds"] < 10 and j["plan_ranks_timed"] == 4 and
    j["bound_kind"] == "flow" and j["rank_bytes_max"] <= 1.05 * j["rank_bytes_bound"]' \
    plan "${tiny[@]}" --from tp=4 --to pp=2,dp=2,zero=1 --json
# One rank's copies: what it receives is what the figures say.
holds 'j["plan"]["rank"] == 1 and sum(c["bytes"] for c in j["plan"]["copies"]
    if c["target"] == 1 and c["source"] != 1) ==
    j["plan"]["figures"]["node_in"] + j["plan"]["figures"]["remote_in"] > 0' \
    plan "${tiny[@]}" --from tp=4 --to pp=2,dp=2,zero=1 --rank 1 --json
# Nodes: with two ranks on each, some bytes travel between them; the least time follows from the loads.
holds 'j["remote"]["bytes"] > 0 and j["remote"]["bytes"] + j["node"]["bytes"] == j["bytes_moved"] and
    j["from"]["nodes"] == 2 and j["seconds_bound"] >= j["node_bytes_bound"] / 10e9 > 0' plan "${tiny[@]}" --from tp=4 --to pp=2,dp=2 \
    --ranks-per-node 2 --intra-gbps 100 --inter-gbps 10 --json
holds 'j["from"]["nodes"] == 2' plan "${tiny[@]}" --from tp=4 --to pp=4 --nproc-per-node=2 --json

expect 0 'world 4 = tp4 cp1 dp1 pp1' plan "${tiny[@]}" --from tp=4 --to pp=2,dp=2,zero=1
expect 0 'activations not counted' plan "${tiny[@]}" --from tp=4 --to pp=2,dp=2,zero=1
expect 0 'rank 3' plan "${tiny[@]}" --from tp=4 --to pp=2,dp=2,zero=1 --rank 3

# Pictures: well-formed, not overwritten unasked.
well_formed() {
    python3 -c "
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
assert root.tag == '{http://www.w3.org/2000/svg}svg'
words = ' '.join(t.text or '' for t in root.iter('{http://www.w3.org/2000/svg}text'))
for word in sys.argv[2:]:
    assert word in words, word + ' is not in ' + words
" "$@"
}
expect 0 'bytes moved' plan "${tiny[@]}" --from tp=4 --to pp=2,dp=2,zero=1 --svg small.svg
check "the picture" well_formed small.svg tp=4 pp=2,dp=2,zero=1 Before After Transfers 'rank 3' Legend
refuse 1 'small.svg exists already' plan "${tiny[@]}" --from tp=4 --to pp=4 --svg small.svg
check "the picture is untouched" well_formed small.svg zero=1
expect 0 'bytes moved' plan "${tiny[@]}" --from tp=4 --to pp=4 --svg small.svg --force
check "the new picture" well_formed small.svg pp=4
refuse 1 'no/such/folder/x.svg: No such file' plan "${tiny[@]}" --from tp=4 --to pp=4 --svg no/such/folder/x.svg
expect 0 'bytes moved' plan --model llama-20m --from tp=8,dp=8,zero=1 --to pp=4,dp=16 --ranks-per-node 8 \
    --svg large.svg
check "the large picture" well_formed large.svg Before After Transfers
check "no half files are left" bash -c "[ -z \"\$(find . -name '*.tmp')\" ]"

# Those of the documents are what is drawn today.
mkdir drawn
check "draws the pictures of the documents" "$pictures/make.sh" "$reshard" drawn
for picture in "$pictures"/*.svg; do
    check "is drawn by make.sh as it is: $picture" cmp "$picture" "drawn/$(basename "$picture")"
done
check "documents show all of them" bash -c "[ \$(ls drawn | wc -l) -eq \$(ls '$pictures'/*.svg | wc -l) ]"

# What tokens at experts take: 4 layers of 8 experts, 2 a token. Of each of 512 tokens one rank gets two rows, and keeps of
# each in each layer 256 + 1 + 2 x 352 floats; three times 257 and 352 serve all layers in turn. On dp=2,ep=2 both ranks may
# send all of their rows to one.
rows() {
    holds "$1" plan --model mixtral-tiny --dtype fp32 "${@:2}" --json
}
rows 'j["to"]["expert_rows_bytes"]["worst"] == 2 * j["to"]["expert_rows_bytes"]["even"] > 0' --from dp=1 --to dp=2,ep=2
rows 'j["from"]["expert_rows_bytes"]["worst"] == j["from"]["expert_rows_bytes"]["even"] > 0' --from dp=1 --to dp=2,ep=2
rows 'j["to"]["expert_rows_bytes"]["worst"] == 2 * j["from"]["expert_rows_bytes"]["worst"]' --from dp=1 --to dp=2,ep=2
rows 'j["from"]["expert_rows_bytes"]["worst"] == 1024 * 4 * (4 * (257 + 704) + 3 * 257 + 352)' --from dp=1 --to dp=2
rows 'j["from"]["expert_rows_bytes"] == j["to"]["expert_rows_bytes"]' --from dp=1 --to dp=2
expect 0 "experts' rows .* if chosen evenly, .* at worst" plan --model mixtral-tiny --from dp=1 --to dp=2,ep=2
holds '"expert_rows_bytes" not in j["to"]' plan "${tiny[@]}" --from tp=2 --to tp=1 --json

# Mirrors: of masters and moments (bf16) or moments alone (fp32), where ZeRO has divided them over nodes.
mirrored=(plan --model llama-tiny --from dp=2,zero=1 --to dp=4,zero=3 --redundancy 1)
holds 'j["from"]["mirror_bytes"] == 12 * j["model"]["parameters"] and j["to"]["mirror_bytes"] == 14 * j["model"]["parameters"]
    and j["bytes_moved"] == j["bytes_minimum"]' "${mirrored[@]}" --dtype bf16 --ranks-per-node 1 --json
holds 'j["from"]["mirror_bytes"] == 0 and j["to"]["mirror_bytes"] == 12 * j["model"]["parameters"]' \
    "${mirrored[@]}" --dtype fp32 --ranks-per-node 2 --json
expect 0 'mirrors +33.96 MiB of all ranks' "${mirrored[@]}" --dtype bf16 --ranks-per-node 1
refuse 2 'mirrors are on other nodes' "${mirrored[@]}"
refuse 2 '--redundancy: wanted 0 or 1, found 2' plan "${tiny[@]}" --from tp=2 --to tp=4 --redundancy 2

refuse 2 '--from: .*tpp' plan "${tiny[@]}" --from tpp=2 --to tp=1
refuse 2 '--rank: wanted a rank from 0 to 3, found 9' plan "${tiny[@]}" --from tp=2 --to tp=4 --rank 9
refuse 2 '--force: wanted with --svg FILE only' plan "${tiny[@]}" --from tp=2 --to tp=4 --force
finish
