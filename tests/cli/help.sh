#!/usr/bin/env bash
# Help, version, misspelt names, wrong values.
set -u
docs=$(cd "$(dirname "$0")/../../docs" && pwd)
. "$(dirname "$0")/lib.sh"

expect 0 '^reshard [0-9]+\.[0-9]+\.[0-9]+$' --version
expect 0 'usage: reshard COMMAND' --help
expect 0 'usage: reshard COMMAND' help
expect 2 'usage: reshard COMMAND'
commands=$("$reshard" help | sed -nE 's/^  ([a-z]+) +[a-z].*/\1/p' | grep -vxE 'help|reshard')
[ "$(wc -w <<<"$commands")" -ge 17 ]
verdict "help lists the commands" $? "$commands"
for command in $commands; do
    expect 0 "usage: reshard $command" help $command
    expect 0 "usage: reshard $command" $command --help
    expect 0 "^Example" $command -h
    expect 0 "^  reshard $command" help $command
    expect 0 "^  $command " help
    check "help $command is narrow" test -z "$("$reshard" help $command | grep -E '^.{97}')"
    check "docs/commands.md has $command" grep -qE "^    reshard $command +[a-z]" "$docs/commands.md"
done
for command in $commands; do
    expect 0 "^  --json" help $command
done

refuse 2 "no command 'trian'; did you mean 'train'" trian
refuse 2 "no command 'zzzzzz'$" zzzzzz
refuse 2 "reshard plan: no option --modle; did you mean --model" plan --modle x
refuse 2 "reshard plan: no option --qqqqqqq$" plan --qqqqqqq
refuse 2 "no option -x; options begin with --" plan -x
refuse 2 "reshard plan: --model M is missing" plan --from tp=1 --to tp=2
refuse 2 "reshard switch: DIR is missing" switch
refuse 2 "reshard switch: LAYOUT is missing" switch somewhere
refuse 2 "'c' is one word too many" switch a b c
refuse 2 "--steps: wanted a whole number from 1 on, found 'ten'" train --steps ten
refuse 2 "--steps: wanted a whole number from 1 on, found '0'" train --steps=0
refuse 2 "--lr: wanted a number from 0 on, found '1e999'" train --lr 1e999
refuse 2 "--dtype: wanted one of bf16\|fp32, found 'int4'" train --dtype int4
refuse 2 "--json takes no value" plan --json=yes
refuse 2 "--model: wanted M after it, found nothing" plan --model
refuse 2 "--model: wanted a value, found an empty text" plan --model ''
refuse 2 "started? by|starts through mpirun" worker --job nowhere --link unix:nobody

expect 0 '^ok +memory for the state' doctor
expect 0 'the job needs' doctor --model llama-tiny --layout tp=2
expect 1 '^NO +memory for the state .*the job needs .* TiB' doctor --model llama3-70b --layout tp=8,dp=64
expect 1 '^NO +disk for the job' doctor --job /nowhere
refuse 2 'unknown key tpp' doctor --layout tpp=2
finish
