# What the suites share. Sourced in the guest, before the suite.
# shellcheck shell=bash disable=SC2034,SC2153,SC2154 # the suites use what is set here, guest/cases sets $TARGET and $out
#
# A suite is a file suite-NAME.sh beside this one. It sets SUITE_MODULES (for drives also SUITE_DISKS, images as "NAME SIZE", and
# SUITE_QEMU, words for QEMU), calls add_case for each case, and defines the case CASE-NAME as function NAME_CASE_NAME. tests/vm/run sources it too, to know the cases: only definitions at its top level.
# A case fails when any command in it fails, or by `fail REASON`. It need not clean up.

shopt -s extglob nullglob

declare -A case_limit=()
# add_case NAME SECONDS [short] [weft]: short: also part of the short form; weft: makes no sense with TARGET=nvmet.
add_case() { case_limit[$1]=$2; }

report() { # WORD [ARGUMENT...]: one line to tests/vm/run on the machine
    local IFS=$'\t'
    echo "@$*" >/dev/ttyS1
}

because() { [ -s /run/reason ] || echo "$*" >/run/reason; } # the first reason stands
fail() { because "$*"; exit 1; }

exec {quiet}<> <(:)
nap() { read -rt "$1" -u "$quiet" || true; } # sleep without a process: those are dear here

# soon SECONDS COMMAND...: try the command until it succeeds.
soon() {
    local end=$((SECONDS + $1))
    shift
    { set +x; } 2>/dev/null
    until "$@"; do
        ((SECONDS < end)) || { set -x; return 1; }
        nap 0.2
    done
    set -x
}

# -- hosts --------------------------------------------------------------------------------------------------------------

transport=tcp
address=127.0.0.1
service=4420
host_a=nqn.2014-08.org.nvmexpress:uuid:0a0a0a0a-1111-4222-8333-444444444444
host_b=nqn.2014-08.org.nvmexpress:uuid:0b0b0b0b-1111-4222-8333-444444444444
host=$host_a

as_host() { host=$1; }
identity() { echo "--hostnqn=$host --hostid=${host##*:}"; }

# connect NQN [nvme-cli options]: leaves the new controller's name in $ctrl.
connect() {
    local nqn=$1 said
    shift
    # shellcheck disable=SC2046 # two words
    said=$(timeout 60 nvme connect -t "$transport" -a "$address" -s "$service" -n "$nqn" $(identity) "$@" 2>&1) ||
        fail "nvme connect to $nqn: $said"
    ctrl=$(grep -oE 'nvme[0-9]+' <<<"$said" | tail -1)
    [ -n "$ctrl" ] || fail "nvme connect named no controller: $said"
}

discover() { # [nvme-cli options]: the discovery log as text
    # shellcheck disable=SC2046 # two words
    timeout 60 nvme discover -t "$transport" -a "$address" -s "$service" $(identity) "$@"
}

state() { cat "/sys/class/nvme/$1/state" 2>/dev/null || echo gone; }
is_live() { [ "$(state "$1")" = live ]; }
is_gone() { [ ! -e "/sys/class/nvme/$1" ]; }

find_device() { # CTRL NSID
    local path name
    for path in /sys/class/nvme/"$1"/nvme*n*; do
        if [ ! -e "$path/nsid" ] || [ "$(<"$path/nsid")" != "$2" ]; then continue; fi
        name=${path##*/}
        name=${name/c+([0-9])n/n} # the path's name to that of the namespace
        if [ ! -b "/dev/$name" ] || [ "$(<"/sys/block/$name/size")" = 0 ]; then continue; fi
        dev=/dev/$name
        return 0
    done
    return 1
}
# device CTRL NSID: leaves the block device of the namespace in $dev. Names are handed out as things appear: assume none.
device() { soon 20 find_device "$1" "$2" || fail "no block device for namespace $2 of $1"; }

disconnect() { # CTRL
    timeout 60 nvme disconnect -d "$1"
    soon 10 is_gone "$1" || fail "$1 is still there after disconnect"
}

# -- I/O ----------------------------------------------------------------------------------------------------------------

# verify DEVICE BLOCK-SIZE TOTAL [fio options]: random writes, then all read back and checked.
verify() {
    local target=$1 bs=$2 size=$3
    shift 3
    fio --name=verify --thread --filename="$target" --direct=1 --ioengine=io_uring --iodepth=16 --rw=randwrite \
        --bs="$bs" --size="$size" --verify=crc32c --do_verify=1 --verify_fatal=1 --randrepeat=0 "$@"
}

# has_written DEVICE COUNT: have that many writes completed, by all paths together?
has_written() {
    local path name=${1#/dev/} sum=0
    local -a stat
    # The block device of a multipath namespace counts nothing in older kernels; its paths do.
    for path in /sys/block/"${name%n*}"c*n"${name##*n}"/stat; do
        read -ra stat <"$path"
        sum=$((sum + stat[4]))
    done
    read -ra stat <"/sys/block/$name/stat"
    ((sum >= $2 || stat[4] >= $2))
}

# -- the target ---------------------------------------------------------------------------------------------------------
#
# target_start reads a description, one thing a line, and starts weft or the kernel's nvmet with it (TARGET):
#   port ADDRESS [TRANSPORT]        default: $address, $transport, service 4420; several are possible for weft
#   subsystem NQN any|HOSTNQN...    with the serial number WEFT0001, WEFT0002, ...
#   namespace NSID memory|file|null SIZE_MIB [PATH|- [LBA-SIZE]]

target_start() { "${TARGET}_describe"; target_again; }
target_again() { "${TARGET}_start"; }   # as described last
target_kill() { "${TARGET}_kill"; }     # at once, connections and all
target_stop() { "${TARGET}_stop"; }     # orderly, checks how it ends

weft_config=/run/weft.toml
weft_pid=

weft_port() { # ID ADDRESS TRANSPORT
    local at=$2
    case $at in *:*) at="[$at]" ;; esac
    printf '[[port]]\nid = %s\ntransport = "%s"\naddress = "%s:%s"\n' "$1" "$3" "$at" "$service"
}
weft_describe() {
    local word rest serial=0 port=0 ports=''
    : >"$weft_config"
    local text=''
    { set +x; } 2>/dev/null
    while read -r word rest; do
        # shellcheck disable=SC2086 # words of a line
        set -- $rest
        case $word in
            port)
                port=$((port + 1))
                ports+=$(weft_port $port "$1" "${2:-$transport}")$'\n'
                ;;
            subsystem)
                text+=$'\n[[subsystem]]\n'"nqn = \"$1\""$'\n'"serial = \"$(printf 'WEFT%04d' $((++serial)))\""$'\n'
                if [ "$2" = any ]; then
                    text+='allow_any_host = true'$'\n'
                else
                    shift
                    text+="allowed_hosts = [$(printf '"%s", ' "$@")]"$'\n'
                fi
                ;;
            namespace)
                text+=$'\n[[subsystem.namespace]]\n'"nsid = $1"$'\n'"backend = \"$2\""$'\n'"size = \"$3 MiB\""$'\n'
                [ "${4:--}" = - ] || text+="path = \"$4\""$'\n'
                [ -z "${5:-}" ] || text+="lba_size = $5"$'\n'
                ;;
        esac
    done
    ports=${ports:-$(weft_port 1 "$address" "$transport")}
    printf '%s\n%s\n%s' "${weft_limits:-}" "$ports" "$text" >"$weft_config"
    set -x
    cat "$weft_config"
}

http() { busybox wget -qO- -T 5 "http://127.0.0.1:9464$1"; }
weft_is_ready() { kill -0 "$weft_pid" 2>/dev/null || return 0; http /healthz >/dev/null 2>&1; }

weft_start() { weft_run --config "$weft_config"; }
weft_run() { # [arguments of `weft serve`]
    # Through a pipe: writing to the share is slow and must not hold up weft.
    LD_LIBRARY_PATH=/run/lib RUST_BACKTRACE=1 /run/bin/weft serve "$@" > >(exec cat >>"$out/target.log") 2>&1 &
    weft_pid=$!
    soon 30 weft_is_ready || fail "weft is not ready after 30 s (/healthz does not answer 200)"
    kill -0 "$weft_pid" || { wait "$weft_pid" || fail "weft ended at start with status $?"; fail "weft ended at start"; }
}
weft_kill() {
    kill -9 "$weft_pid"
    wait "$weft_pid" || true
    weft_pid=
}
weft_is_ended() { ! kill -0 "$weft_pid" 2>/dev/null; }
weft_stop() {
    local pid=$weft_pid status=0
    kill -TERM "$pid" || fail "weft is not running any more"
    soon 20 weft_is_ended || fail "weft is still running 20 s after SIGTERM"
    weft_pid=
    wait "$pid" || status=$?
    [ "$status" = 0 ] || fail "weft ended with status $status on SIGTERM"
}

nvmet=/sys/kernel/config/nvmet
nullb=/sys/kernel/config/nullb
nvmet_subsystems=()
nvmet_port=

nvmet_describe() {
    local word rest sub serial=0 path
    modprobe -a "nvmet-$transport"
    modprobe null_blk nr_devices=0
    nvmet_subsystems=()
    nvmet_port=$address
    while read -r word rest; do
        # shellcheck disable=SC2086 # words of a line
        set -- $rest
        case $word in
            port) nvmet_port=$1 ;;
            subsystem)
                sub=$nvmet/subsystems/$1
                nvmet_subsystems+=("$sub")
                mkdir "$sub"
                printf 'WEFT%04d' $((++serial)) >"$sub/attr_serial"
                if [ "$2" = any ]; then
                    echo 1 >"$sub/attr_allow_any_host"
                else
                    shift
                    for rest in "$@"; do
                        mkdir -p "$nvmet/hosts/$rest"
                        ln -s "$nvmet/hosts/$rest" "$sub/allowed_hosts/"
                    done
                fi
                ;;
            namespace)
                mkdir "$sub/namespaces/$1"
                path=${4:-}
                if [ "$2" = file ]; then
                    truncate -s "$3M" "$path"
                    echo 1 >"$sub/namespaces/$1/buffered_io"
                else
                    nvmet_memory "$serial$1" "$3" "${5:-512}"
                fi
                echo -n "$path" >"$sub/namespaces/$1/device_path"
                echo 1 >"$sub/namespaces/$1/enable"
                ;;
        esac
    done
}
nvmet_memory() { # ID SIZE_MIB LBA-SIZE: leaves the device in $path
    local knob=$nullb/vm$1
    mkdir "$knob"
    echo "$2" >"$knob/size"
    echo "$3" >"$knob/blocksize"
    echo 1 >"$knob/memory_backed"
    echo 1 >"$knob/discard"
    echo 1 >"$knob/power"
    path=/dev/vm$1
    [ -b "$path" ] || path=/dev/nullb$(<"$knob/index")
}
nvmet_start() {
    local sub port=$nvmet/ports/1
    if [ ! -e "$port" ]; then
        mkdir "$port"
        echo "$transport" >"$port/addr_trtype"
        case $nvmet_port in *:*) echo ipv6 ;; *) echo ipv4 ;; esac >"$port/addr_adrfam"
        echo "$nvmet_port" >"$port/addr_traddr"
        echo "$service" >"$port/addr_trsvcid"
    fi
    for sub in "${nvmet_subsystems[@]}"; do ln -s "$sub" "$port/subsystems/"; done
}
nvmet_kill() { # the nearest thing to a dead target: its port closes, and all connections with it
    rm -f "$nvmet"/ports/*/subsystems/*
}
nvmet_stop() {
    local entry
    nvmet_kill
    for entry in "$nvmet"/ports/* "$nvmet"/subsystems/*/namespaces/*; do rmdir "$entry"; done
    rm -f "$nvmet"/subsystems/*/allowed_hosts/*
    for entry in "$nvmet"/subsystems/* "$nvmet"/hosts/*; do rmdir "$entry"; done
    for entry in "$nullb"/vm*; do
        echo 0 >"$entry/power"
        rmdir "$entry"
    done
}

# -- after a case -------------------------------------------------------------------------------------------------------

# finish: the end of a case that went well: its hosts leave, its target ends in order.
finish() {
    local folder
    awk '$1 ~ "^/dev/nvme" { print $2 }' /proc/mounts | while read -r folder; do umount "$folder"; done
    disconnect_all
    if [ "$TARGET" != weft ] || [ -n "$weft_pid" ]; then target_stop; fi
}

disconnect_all() { [ -z "$(echo /sys/class/nvme/*)" ] || timeout 60 nvme disconnect-all; }

# clean_up: whatever a case left, by force. Its processes are dead already.
clean_up() {
    local folder
    [ ! -d "$nvmet/ports/1" ] || nvmet_kill
    disconnect_all
    [ ! -d "$nvmet/subsystems" ] || nvmet_stop 2>/dev/null
    for folder in /mnt/*; do umount -l "$folder" 2>/dev/null; done
    # shellcheck disable=SC2115 # that is what is meant
    rm -rf /run/ns* /run/data* /tmp/* /mnt/*
}
