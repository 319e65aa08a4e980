#!/bin/sh
# Makes everything in this folder, or the folders named; `contest` is the table and the picture of what is kept. Needs
# COTERIE_DATA; keeps traces in out/reproduce, so it can be interrupted. Hours on two cores; what is done is not done again.
set -eu
cd "$(dirname "$0")/.."
coterie=${COTERIE:-.venv/bin/coterie}
wanted=" $* "

one() { # folder, then the words after `coterie reproduce`
    folder=$1
    shift
    case $wanted in "  " | *" $folder "*) ;; *) return 0 ;; esac
    "$coterie" reproduce "$@" --out "out/reproduce/$folder"
    mkdir -p "results/$folder"
    made=$(ls -d "out/reproduce/$folder"/*/)
    for file in numbers.json runs.parquet curves.parquet tuning.parquet; do cp "$made$file" "results/$folder/"; done
    for figure in "$made"figure-*; do cp "$figure" "results/$folder/"; done
    echo "coterie reproduce $* --out out/reproduce/$folder" >"results/$folder/command.txt"
}

game() { # folder, game of `coterie contest`, who plays
    case $wanted in "  " | *" $1 "*) ;; *) return 0 ;; esac
    "$coterie" contest "$2" --policies "$3" --out "out/contest/$1"
    mkdir -p "results/$1"
    for file in numbers.json runs.parquet curves.parquet tuning.parquet; do
        cp "out/contest/$1/$2/$file" "results/$1/"
    done
    echo "coterie contest $2 --policies $3 --out out/contest/$1" >"results/$1/command.txt"
}

contest() { # the table and the picture of all that is kept; later folders count
    case $wanted in "  " | *" contest "*) ;; *) return 0 ;; esac
    kept=
    for folder in "$@"; do
        if [ -e "results/$folder/numbers.json" ]; then kept="$kept results/$folder"; fi
    done
    # shellcheck disable=SC2086
    "$coterie" contest $kept --out results --into results/README.md
}

took() { # how long the contest takes, estimated; some minutes
    case $wanted in "  " | *" took "*) ;; *) return 0 ;; esac
    "${PYTHON:-.venv/bin/python}" -m tests.experiments.contest_time >results/contest-time.jsonl
}

draws() { # what the draws of Hierarchical cost, in the folders named; minutes
    case $wanted in "  " | *" draws "*) ;; *) return 0 ;; esac
    "${PYTHON:-.venv/bin/python}" -m tests.experiments.draws_cost "$@" >results/draws.jsonl
}

looks() { # simulated trials that are looked at often; a minute or two
    case $wanted in "  " | *" looks "*) ;; *) return 0 ;; esac
    "${PYTHON:-.venv/bin/python}" -m tests.service.trial.looking >results/looks.json
}

advice() { # what `coterie advise` says of the datasets named; minutes
    case $wanted in "  " | *" advice "*) ;; *) return 0 ;; esac
    mkdir -p results/advice
    for data in "$@"; do
        "$coterie" advise "$data" --json --out "out/advise/$data" >"results/advice/$data.json"
    done
}

lemmas() { # the paper's inequalities in random worlds; minutes
    case $wanted in "  " | *" lemmas "*) ;; *) return 0 ;; esac
    "$coterie" theory lemmas --worlds 200 --rounds 200 --json >results/lemmas.json
}

spending() { # real prompts within a budget, through the service's decisions; minutes
    case $wanted in "  " | *" spending "*) ;; *) return 0 ;; esac
    "${PYTHON:-.venv/bin/python}" -m tests.service.core.spending >results/spending.json
}

looks
took
advice lastfm delicious
lemmas
spending
few=cab,linucb-single,linucb-multiple,random
one lastfm lastfm --policies $few,club,dynucb,sclub
one delicious delicious --policies $few,club,dynucb,sclub
one tuenti tuenti --policies $few,club:alpha2=0.3,dynucb:k=16
one kddcup-twin kddcup-twin --policies $few,club:alpha2=0.3,dynucb:k=16
one avazu-twin avazu-twin --policies $few,club:alpha2=0.3:alpha=0.05

# The other policies, at the same sizes; and all of them while hardly anybody is known.
others=cofiba:alpha2=0.1,dccb:alpha2=0.3,gob-lin:graph=friends,sparse-cab,random
one lastfm-others lastfm --policies $others
one delicious-others delicious --policies $others
one lastfm-short lastfm --rounds 3000 --runs 3 --policies \
    cab,linucb-single,linucb-multiple,club,dynucb:k=8,sclub,cofiba:alpha2=0.1,dccb,gob-lin:graph=friends,sparse-cab,random
most=cab,linucb-single,linucb-multiple,club:alpha2=0.3,dynucb:k=16,sclub,cofiba:alpha2=0.1
one tuenti-short tuenti --rounds 300000 --runs 3 --policies $most,dccb:alpha2=0.3,random
one tuenti-short-alpha tuenti --rounds 300000 --runs 3 --policies \
    cab:alpha=0,cab:alpha=0.01,cab:alpha=0.05,cab:alpha=0.1,cab:alpha=0.17,random
one kddcup-twin-short kddcup-twin --rounds 300000 --runs 3 --policies $most,random
one avazu-twin-short avazu-twin --rounds 300000 --runs 3 --policies $most,random

# Other readings of the paper's preparation.
one lastfm-pool lastfm --policies cab,linucb-single,linucb-multiple,club:alpha2=0.3,random --settings pool=all
one lastfm-untagged lastfm --policies cab,linucb-single,linucb-multiple,club:alpha2=0.3,random --settings untagged=drop

# What CAB's settings do; γ = 0 turns learning together off.
one lastfm-alpha lastfm --policies \
    cab:alpha=0,cab:alpha=0.02,cab:alpha=0.03,cab:alpha=0.05,cab:alpha=0.1,cab:alpha=0.2,random
one lastfm-gamma lastfm --runs 3 --policies \
    cab:alpha=0.01:gamma=0,cab:alpha=0.01:gamma=0.1,cab:alpha=0.01:gamma=0.2,cab:alpha=0.01:gamma=0.4,random
one lastfm-alone lastfm --policies cab:gamma=0,random

# The contest: what we recommend, with its defaults, against everybody, tuned; Vowpal Wabbit with the best of five settings.
# The rivals on LastFM's and Delicious' features and on the twins are those above.
shown_ids=cab:items=ids,linucb-single:items=ids,linucb-multiple:items=ids,club:items=ids:alpha2=0.3
outside=vw,vw:items=features,club,random
ours=hierarchical,hierarchical:items=features,random
for data in lastfm delicious; do
    one $data-vw $data --policies $outside
    one $data-hierarchical $data --policies $ours
done
for data in lastfm delicious; do
    one $data-friends $data --policies hierarchical:items=features:friends=friends,random
    game $data-hier-ts $data hier-ts,locb,random
done
# There, an id that never came up before is likely the one liked; not so when all items are available from the start.
for data in lastfm delicious; do one $data-pool-hierarchical $data --policies $ours --settings pool=all; done
one lastfm-pool-vw lastfm --policies vw,random --settings pool=all
one delicious-pool delicious --policies linucb-single,linucb-multiple,vw,random --settings pool=all
rivals=cab,linucb-single,linucb-multiple,club,dynucb,sclub
for data in movielens movielens-repeat; do
    one $data $data --policies vw,$rivals,$shown_ids,random
    one $data-hierarchical $data --policies hierarchical,random
done
for twin in tuenti kddcup-twin avazu-twin; do
    one $twin-hierarchical $twin --policies hierarchical,random
    one $twin-short-vw $twin --rounds 300000 --runs 3 --policies vw,random
    one $twin-short-hierarchical $twin --rounds 300000 --runs 3 --policies hierarchical,random
done
for world in music-and-news dense lonely; do
    one world-$world $world --policies vw,$rivals,random
    one world-$world-hierarchical $world --policies hierarchical,random
done
late=cofiba,dccb,locb,bass,m-cnb,hier-ts,random
one movielens-others movielens --policies cofiba:alpha2=0.1,dccb:alpha2=0.3,random
for data in movielens movielens-repeat; do game $data-late $data $late; done
for world in music-and-news dense lonely; do game world-$world-others $world $late; done
games=
for name in camera bank margarine electricity swissmetro insteval ta-feng movielens-100k movielens-groups movielens-locb \
    cancer wine iris prompts open-bandit; do
    game $name $name vw,cab,club,sclub,dynucb,linucb-single,linucb-multiple,$late
    game $name-mcnb $name m-cnb,random  # counts where the first folder is without it
    game $name-hierarchical $name hierarchical,gob-lin:graph=friends,random
    games="$games $name $name-mcnb $name-hierarchical"
done
game movielens-100k-locb movielens-100k locb,random
game digits digits vw,linucb-single,linucb-multiple,random
game digits-others digits cab,club,sclub,dynucb,cofiba,dccb,random
game digits-hierarchical digits hierarchical,gob-lin:graph=friends,random
draws results/electricity-hierarchical results/margarine-hierarchical results/camera-hierarchical \
    results/movielens-groups-hierarchical
# shellcheck disable=SC2086
contest lastfm lastfm-others lastfm-hier-ts lastfm-vw lastfm-hierarchical lastfm-friends lastfm-pool lastfm-pool-vw lastfm-pool-hierarchical \
    delicious delicious-others delicious-hier-ts delicious-vw delicious-hierarchical delicious-friends delicious-pool delicious-pool-hierarchical \
    movielens movielens-others movielens-late movielens-hierarchical \
    movielens-repeat movielens-repeat-late movielens-repeat-hierarchical \
    tuenti tuenti-hierarchical kddcup-twin kddcup-twin-hierarchical avazu-twin avazu-twin-hierarchical \
    tuenti-short tuenti-short-vw tuenti-short-hierarchical kddcup-twin-short kddcup-twin-short-vw \
    kddcup-twin-short-hierarchical avazu-twin-short avazu-twin-short-vw avazu-twin-short-hierarchical \
    world-music-and-news world-music-and-news-others world-music-and-news-hierarchical \
    world-dense world-dense-others world-dense-hierarchical world-lonely world-lonely-others world-lonely-hierarchical \
    digits digits-others digits-hierarchical $games movielens-100k-locb
