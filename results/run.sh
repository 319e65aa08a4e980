#!/bin/sh
# Makes everything in this folder. Needs COTERIE_DATA; keeps traces in out/reproduce, so it can be interrupted.
set -eu
cd "$(dirname "$0")/.."
coterie=${COTERIE:-.venv/bin/coterie}

one() { # folder, then the words after `coterie reproduce`
    folder=$1
    shift
    "$coterie" reproduce "$@" --out "out/reproduce/$folder"
    mkdir -p "results/$folder"
    made=$(ls -d "out/reproduce/$folder"/*/)
    for file in numbers.json runs.parquet curves.parquet tuning.parquet; do cp "$made$file" "results/$folder/"; done
    for figure in "$made"figure-*; do cp "$figure" "results/$folder/"; done
    echo "coterie reproduce $* --out out/reproduce/$folder" >"results/$folder/command.txt"
}

for dataset in ${*:-lastfm delicious tuenti kddcup-twin avazu-twin}; do
    one "$dataset" "$dataset" --policies all
done

# The other readings of LastFM, and γ.
if [ $# -eq 0 ]; then
    few=cab,linucb-single,linucb-multiple,random
    one lastfm-pool-all lastfm --policies $few --setting pool=all
    one lastfm-untagged-drop lastfm --policies $few --setting untagged=drop
    one lastfm-uncentred lastfm --policies $few --setting centre=false
    one lastfm-unit lastfm --policies $few --setting scale=unit
    gammas=cab:gamma=0,cab:gamma=0.05,cab:gamma=0.1,cab:gamma=0.2,cab:gamma=0.4,cab:gamma=0.8,random
    one lastfm-gamma lastfm --policies $gammas
    one tuenti-gamma tuenti --policies $gammas
fi
