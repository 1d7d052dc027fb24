# Suite tcp: a Linux host over NVMe/TCP, both in this guest, over the loopback device.
# shellcheck shell=bash disable=SC2034,SC2153,SC2154,SC2317,SC2329 # variables and functions of lib.sh, functions called by name
SUITE_MODULES="nvme-tcp ext4 loop"

one=nqn.2026-12.io.weft:one
two=nqn.2026-12.io.weft:two

# A name in the metrics page whose sum is the number of open connections, as an extended regular expression.
connections_metric=${CONNECTIONS_METRIC:-weft_connections_open}

one_memory() { # [MIB]: a target with one subsystem that has one memory namespace
    target_start <<<"subsystem $one any
        namespace 1 memory ${1:-64}"
}

# -- discovery ----------------------------------------------------------------------------------------------------------

add_case discover 120 short
tcp_discover() {
    target_start <<<"subsystem $one any
        namespace 1 memory 16
        subsystem $two $host_b
        namespace 1 memory 16"
    local said
    said=$(discover)
    grep -q "subnqn: *$one\$" <<<"$said" || fail "$one is not in the discovery log"
    grep -q 'subtype: *current discovery subsystem' <<<"$said" || fail "the discovery log has no entry of its own"
    grep -q "traddr: *$address\$" <<<"$said" || fail "the discovery log does not say $address"
    ! grep -q "subnqn: *$two\$" <<<"$said" || fail "the discovery log shows a subsystem that this host may not use"
    said=$(as_host "$host_b" && discover --hdr-digest --data-digest)
    grep -q "subnqn: *$two\$" <<<"$said" || fail "the discovery log hides a subsystem from the host that may use it"
}

add_case connect-all 120
tcp_connect_all() { # a target that listens everywhere tells each host the address by which that host came
    target_start <<<"port 0.0.0.0
        subsystem $one any
        namespace 1 memory 16
        subsystem $two any
        namespace 1 memory 16"
    address=127.0.0.2
    discover | tee /run/discovered
    ! grep 'traddr:' /run/discovered | grep -v "traddr: *$address\$" || fail "the log names another address than $address"
    # shellcheck disable=SC2046 # two words
    nvme connect-all -t tcp -a "$address" -s "$service" $(identity) --hdr-digest
    local nqn subsystem found=0
    for nqn in /sys/class/nvme/*/subsysnqn; do
        subsystem=$(<"$nqn")
        case $subsystem in "$one" | "$two") found=$((found + 1)) ;; esac
    done
    [ $found = 2 ] || fail "connect-all made $found controllers, not 2"
}

# -- connect ------------------------------------------------------------------------------------------------------------

connect_with() { # [options]: connect, write and read back, see what the host thinks of it
    one_memory
    connect "$one" "$@"
    device "$ctrl" 1
    [ "$(blockdev --getsize64 "$dev")" = $((64 << 20)) ] || fail "the size is $(blockdev --getsize64 "$dev")"
    verify "$dev" 4k 1m
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl")"
    ! dmesg_of_case | grep -E "$ctrl:.*(error|timeout|digest)" || fail "the host complains, see case.log"
}
dmesg_of_case() { dmesg | awk '/weft-vm: start/ { text = "" } { text = text $0 "\n" } END { printf "%s", text }'; }

add_case connect 120 short
tcp_connect() {
    connect_with
    local text
    nvme list | tee /run/list
    grep -q "^$dev " /run/list || fail "nvme list does not show $dev"
    grep -q WEFT0001 /run/list || fail "nvme list does not show the serial number"
    nvme list-subsys | tee /run/list
    grep -q "NQN=$one" /run/list || fail "nvme list-subsys does not show $one"
    grep -qE "$ctrl tcp .*traddr=$address.* live" /run/list || fail "nvme list-subsys does not show $ctrl live"
    nvme id-ctrl "/dev/$ctrl" -o json >/run/id-ctrl
    jq -e '.sn == "WEFT0001" or (.sn | startswith("WEFT0001 "))' /run/id-ctrl || fail "id-ctrl: serial number"
    jq -e --arg nqn "$one" '.subnqn == $nqn' /run/id-ctrl || fail "id-ctrl: subnqn"
    jq -e '.nn >= 1 and .ioccsz >= 4 and .kas >= 1' /run/id-ctrl || fail "id-ctrl: nn, ioccsz or kas"
    nvme id-ns "$dev" -o json >/run/id-ns
    jq -e '.nsze > 0 and .ncap == .nsze' /run/id-ns || fail "id-ns: size"
    text=$(nvme list-ns "/dev/$ctrl")
    grep -q '0x1$' <<<"$text" || fail "list-ns: $text"
}

add_case connect-hdgst 120
tcp_connect_hdgst() { connect_with --hdr-digest; }

add_case connect-ddgst 120
tcp_connect_ddgst() { connect_with --data-digest; }

add_case connect-both 120 short
tcp_connect_both() { connect_with --hdr-digest --data-digest; }

add_case ipv6 120
tcp_ipv6() {
    target_start <<<"port ::1
        subsystem $one any
        namespace 1 memory 64"
    address=::1
    discover | tee /run/discovered
    grep -q 'adrfam: *ipv6' /run/discovered || fail "the discovery log does not say ipv6"
    connect "$one"
    device "$ctrl" 1
    verify "$dev" 4k 1m
}

add_case queues 240
tcp_queues() { # default, write and poll queues: three for each processor is the most that this host makes
    one_memory
    local cpus
    cpus=$(nproc)
    connect "$one" --nr-io-queues="$cpus" --nr-write-queues="$cpus" --nr-poll-queues="$cpus" --hdr-digest
    device "$ctrl" 1
    [ "$(<"/sys/class/nvme/$ctrl/queue_count")" = $((3 * cpus + 1)) ] ||
        fail "$(<"/sys/class/nvme/$ctrl/queue_count") queues, not $((3 * cpus + 1))"
    verify "$dev" 16k 4m --numjobs=2 --offset_increment=8m
    # No polled I/O: Linux's own nvme_tcp_poll sleeps where it must not, which earns a WARNING now and then (seen on 7.3).
}

add_case queue-size 240
tcp_queue_size() {
    one_memory
    local size
    for size in 16 128 1024; do
        connect "$one" --queue-size="$size" --nr-io-queues=1
        device "$ctrl" 1
        verify "$dev" 4k 2m --iodepth=200
        disconnect "$ctrl"
    done
}

add_case denied 120
tcp_denied() {
    target_start <<<"subsystem $one $host_b
        namespace 1 memory 64"
    local said
    # shellcheck disable=SC2046 # two words
    if said=$(nvme connect -t tcp -a "$address" -s "$service" -n "$one" $(identity) 2>&1); then
        fail "a host that is not allowed was let in: $said"
    fi
    # shellcheck disable=SC2046 # two words
    if said=$(nvme connect -t tcp -a "$address" -s "$service" -n "$two" $(identity) 2>&1); then
        fail "a subsystem that does not exist was connected: $said"
    fi
    [ -z "$(echo /sys/class/nvme/*)" ] || fail "a refused host left a controller: $(echo /sys/class/nvme/*)"
    as_host "$host_b"
    connect "$one"
    device "$ctrl" 1
}

add_case default 120 weft
tcp_default() { # without a configuration: one memory namespace of 1 GiB for everyone
    weft_run
    connect nqn.2026-12.io.weft:default
    device "$ctrl" 1
    [ "$(blockdev --getsize64 "$dev")" = $((1 << 30)) ] || fail "the size is $(blockdev --getsize64 "$dev")"
    verify "$dev" 64k 4m --offset=1020m
}

# -- what the host asks -------------------------------------------------------------------------------------------------

add_case logs 120
tcp_logs() { # SMART must be there; of the others a refusal is an answer, but nothing may break
    one_memory
    connect "$one"
    device "$ctrl" 1
    nvme smart-log "/dev/$ctrl" -o json | jq -e '.temperature != null' || fail "no SMART log"
    nvme error-log "/dev/$ctrl" -e 4 || echo "no error log"
    nvme fw-log "/dev/$ctrl" || echo "no firmware log"
    nvme effects-log "/dev/$ctrl" || echo "no effects log"
    nvme ana-log "/dev/$ctrl" || echo "no ANA log"
    nvme get-log "/dev/$ctrl" --log-id=0x70 --log-len=1024 || echo "no discovery log here, rightly"
    nvme get-log "/dev/$ctrl" --log-id=0xfe --log-len=64 || echo "no log 0xfe, rightly"
    nvme get-feature "/dev/$ctrl" -f 7 || fail "get-feature: number of queues"
    nvme show-regs "/dev/$ctrl" || echo "no registers"
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl")"
    verify "$dev" 4k 1m
    ! dmesg_of_case | grep -E "$ctrl: (starting error recovery|.*timeout)" || fail "the controller was lost"
}

add_case identity 120
tcp_identity() { # a namespace has names that are not empty and stay
    target_start <<<"subsystem $one any
        namespace 1 memory 16
        namespace 7 file 16 /run/ns7"
    local nsid name first
    for nsid in 1 7; do
        connect "$one"
        device "$ctrl" "$nsid"
        name=/sys/block/${dev#/dev/}
        first="$(<"$name/wwid") $(cat "$name/nguid" "$name/uuid" 2>/dev/null || true)"
        grep -qE '^(uuid|eui)\..*[1-9a-f]' <<<"$first" || fail "namespace $nsid has no identity: $first"
        [[ "$(<"/sys/class/nvme/$ctrl/model")" =~ [A-Za-z] ]] || fail "the model is empty"
        disconnect "$ctrl"
        connect "$one"
        device "$ctrl" "$nsid"
        name=/sys/block/${dev#/dev/}
        [ "$first" = "$(<"$name/wwid") $(cat "$name/nguid" "$name/uuid" 2>/dev/null || true)" ] ||
            fail "namespace $nsid has another identity after connecting again"
        disconnect "$ctrl"
    done
}

add_case odd-lengths 120
tcp_odd_lengths() { # data length and block count that disagree: refused, and the connection lives on
    target_start <<<"subsystem $one any
        namespace 1 memory 64 - 512"
    connect "$one"
    device "$ctrl" 1
    head -c 65536 /dev/urandom >/run/data
    local opcode blocks length way
    # opcode, blocks - 1, bytes: writes with too little data in the capsule and by R2T, and with too much; reads likewise
    while read -r opcode blocks length; do
        way=--read
        [ "$opcode" = 2 ] || way="--write --input-file=/run/data"
        # shellcheck disable=SC2086 # words
        ! nvme io-passthru "$dev" --opcode="$opcode" --namespace-id=1 --cdw10=0 --cdw12="$blocks" \
            --data-len="$length" $way >/run/said 2>&1 ||
            fail "opcode $opcode of $((blocks + 1)) blocks with $length bytes of data was not refused"
        cat /run/said
    done <<<'1 7 512
1 127 16384
1 0 4096
2 7 512
2 0 4096'
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl")"
    ! dmesg_of_case | grep "$ctrl: starting error recovery" || fail "the controller was lost"
    verify "$dev" 4k 1m
}

# -- data ---------------------------------------------------------------------------------------------------------------

add_case mkfs-copy 240 short
tcp_mkfs_copy() {
    one_memory 128
    connect "$one"
    device "$ctrl" 1
    mkfs.ext4 -q -F "$dev"
    mkdir /mnt/fs
    mount "$dev" /mnt/fs
    cp -a /etc /usr/sbin /mnt/fs/
    umount /mnt/fs
    echo 3 >/proc/sys/vm/drop_caches
    mount "$dev" /mnt/fs
    diff -r --no-dereference /etc /mnt/fs/etc
    diff -r --no-dereference /usr/sbin /mnt/fs/sbin
    umount /mnt/fs
    e2fsck -fn "$dev"
}

fio_memory() { # BLOCK-SIZE TOTAL
    one_memory 128
    connect "$one"
    device "$ctrl" 1
    verify "$dev" "$@"
}

add_case fio-4k 240 short
tcp_fio_4k() { fio_memory 4k 8m; }

add_case fio-64k 240
tcp_fio_64k() { fio_memory 64k 32m; }

add_case fio-1m 240
tcp_fio_1m() { fio_memory 1m 64m; }

add_case fio-digests 240
tcp_fio_digests() { # every size from a block to beyond what a capsule holds
    target_start <<<"subsystem $one any
        namespace 1 memory 128 - 512"
    connect "$one" --hdr-digest --data-digest
    device "$ctrl" 1
    verify "$dev" 4k 16m --bsrange=512-256k --bs_unaligned=0
}

# file_backed PATH [LBA-SIZE]: write through the target, then compare with the file itself.
file_backed() {
    target_start <<<"subsystem $one any
        namespace 1 file 128 $*"
    connect "$one"
    device "$ctrl" 1
    verify "$dev" 4k 4m
    verify "$dev" 64k 8m --offset=16m
    verify "$dev" 1m 16m --offset=32m
    head -c 4m /dev/urandom >/run/data
    dd if=/run/data of="$dev" bs=1M seek=64 oflag=direct
    disconnect "$ctrl"
    cmp -n $((4 << 20)) /run/data "$1" 0 $((64 << 20)) || fail "the file does not hold what was written"
}

add_case file-tmpfs 240
tcp_file_tmpfs() { file_backed /run/ns1.img; }

add_case file-ext4 240
tcp_file_ext4() {
    truncate -s 300M /run/ns-disk
    mkfs.ext4 -q -F /run/ns-disk
    mkdir /mnt/disk
    mount -o loop /run/ns-disk /mnt/disk
    file_backed /mnt/disk/ns1.img 4096
    [ "$TARGET" = weft ] || return 0
    connect "$one"
    device "$ctrl" 1
    [ "$(blockdev --getss "$dev")" = 4096 ] || fail "the block size is $(blockdev --getss "$dev"), not 4096"
}

add_case null 120 weft
tcp_null() {
    target_start <<<"subsystem $one any
        namespace 1 null 1024"
    connect "$one"
    device "$ctrl" 1
    fio --name=null --thread --filename="$dev" --direct=1 --ioengine=io_uring --rw=randrw --bs=4k --iodepth=16 \
        --size=1g --io_size=8m
}

add_case discard 240
tcp_discard() { # what the target advertises must work; what it does not is left alone
    one_memory
    connect "$one"
    device "$ctrl" 1
    local queue=/sys/block/${dev#/dev/}/queue
    head -c 8m /dev/urandom >/run/data
    dd if=/run/data of="$dev" bs=1M oflag=direct
    if [ "$(<"$queue/discard_max_bytes")" != 0 ]; then
        blkdiscard -o 1M -l 1M "$dev"
        cmp -n $((1 << 20)) /run/data "$dev" || fail "discard touched what lies before"
        cmp -n $((6 << 20)) /run/data "$dev" $((2 << 20)) $((2 << 20)) || fail "discard touched what lies behind"
        dd if="$dev" of=/dev/null bs=1M skip=1 count=1 iflag=direct
    else
        echo "no discard"
    fi
    if [ "$(<"$queue/write_zeroes_max_bytes")" != 0 ]; then
        blkdiscard -z -o 3M -l 2M "$dev"
        cmp -n $((2 << 20)) /dev/zero "$dev" 0 $((3 << 20)) || fail "write zeroes did not"
        cmp -n $((3 << 20)) /run/data "$dev" $((5 << 20)) $((5 << 20)) || fail "write zeroes touched what lies behind"
    else
        echo "no write zeroes"
    fi
    if [ "$(<"$queue/write_cache")" = "write back" ]; then
        dd if=/run/data of="$dev" bs=64k count=4 conv=fsync
        nvme flush "$dev" -n 1
    else
        echo "no volatile write cache"
    fi
}

# -- several at once ----------------------------------------------------------------------------------------------------

add_case two-hosts 240
tcp_two_hosts() { # one subsystem, two hosts: both see the namespace; one leaves and the other works on
    one_memory
    local a b
    connect "$one"
    a=$ctrl
    device "$a" 1
    as_host "$host_b"
    connect "$one" --hdr-digest --data-digest
    b=$ctrl
    [ "$a" != "$b" ] || fail "the second host got the first one's controller"
    [ "$(<"/sys/class/nvme/$a/cntlid")" != "$(<"/sys/class/nvme/$b/cntlid")" ] || fail "both have the same controller ID"
    device "$b" 1
    local job
    verify "$dev" 4k 4m --rate_iops=400 &
    job=$!
    soon 40 has_written "$dev" 100 || fail "no I/O"
    disconnect "$a"
    wait "$job" || fail "I/O failed when the other host left"
    is_live "$b" || fail "$b is $(state "$b")"
}

add_case two-subsystems 240
tcp_two_subsystems() { # two namespaces each, all written at once, none may show in another
    target_start <<<"subsystem $one any
        namespace 1 memory 32
        namespace 2 memory 32
        subsystem $two any
        namespace 1 memory 32
        namespace 9 file 32 /run/ns9"
    local devices=() a b target jobs=() job
    connect "$one"
    a=$ctrl
    as_host "$host_b"
    connect "$two"
    b=$ctrl
    for target in "$a 1" "$a 2" "$b 1" "$b 9"; do
        # shellcheck disable=SC2086 # two words
        device $target
        devices+=("$dev")
    done
    for target in "${devices[@]}"; do
        verify "$target" 4k 2m --do_verify=0 &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || fail "writing failed"; done
    for target in "${devices[@]}"; do
        head -c 1m /dev/urandom >"/run/data-${target##*/}"
        dd if="/run/data-${target##*/}" of="$target" bs=1M oflag=direct
    done
    for target in "${devices[@]}"; do
        cmp -n $((1 << 20)) "/run/data-${target##*/}" "$target" || fail "$target does not hold its own data"
    done
}

# -- leaving and coming back --------------------------------------------------------------------------------------------

connections() { # the number of open connections that weft's metrics page shows
    http /metrics >/run/metrics || fail "no metrics page"
    grep -qE "^${connections_metric}[ {]" /run/metrics ||
        fail "no metric called $connections_metric; there are: $(grep -oE '^weft_[a-z_]+' /run/metrics | sort -u | xargs)"
    awk -v name="^${connections_metric}[ {]" '$0 ~ name { sum += $NF } END { print sum + 0 }' /run/metrics
}
no_connections() { [ "$(connections)" = 0 ]; }

add_case disconnect 240 short
tcp_disconnect() { # the device goes, the target stays and forgets the host
    one_memory
    local round name
    for round in 1 2 3; do
        connect "$one"
        device "$ctrl" 1
        name=$dev
        if [ "$TARGET" = weft ]; then
            [ "$(connections)" -ge 2 ] || fail "the metrics page shows $(connections) connections while a host is connected"
        fi
        nvme disconnect -n "$one"
        soon 10 is_gone "$ctrl" || fail "$ctrl is still there in round $round"
        [ ! -e "$name" ] || fail "$name is still there in round $round"
    done
    if [ "$TARGET" = weft ]; then
        kill -0 "$weft_pid" || fail "weft is gone"
        soon 10 no_connections || fail "the metrics page shows $(connections) open connections, not 0"
    fi
}

add_case stray 240
tcp_stray() { # connections that never become hosts disturb nobody
    one_memory
    local n fd held=()
    trap '' PIPE
    for n in 1 2 3 4 5 6 7 8 9 10; do
        exec {fd}<>"/dev/tcp/$address/$service" # nothing at all
        held+=("$fd")
        exec {fd}<>"/dev/tcp/$address/$service" # half an ICReq
        printf '\x00\x00\x80\x00\x80\x00\x00\x00\x00\x00' >&"$fd" || true
        held+=("$fd")
        exec {fd}<>"/dev/tcp/$address/$service" # another protocol
        printf 'GET / HTTP/1.1\r\nHost: weft\r\n\r\n' >&"$fd" || true
        held+=("$fd")
    done
    connect "$one"
    device "$ctrl" 1
    verify "$dev" 4k 1m
    for fd in "${held[@]}"; do exec {fd}>&-; done
    verify "$dev" 4k 1m
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl")"
}

add_case reset 240
tcp_reset() { # the host resets its controller again and again while it writes
    one_memory
    connect "$one"
    device "$ctrl" 1
    local job round
    verify "$dev" 4k 6m --rate_iops=200 &
    job=$!
    for round in 1 2 3; do
        soon 40 has_written "$dev" $((round * 100)) || fail "no I/O in round $round"
        nvme reset "/dev/$ctrl"
        soon 40 is_live "$ctrl" || fail "$ctrl is $(state "$ctrl") after reset $round"
    done
    wait "$job" || fail "I/O failed or did not verify"
}

add_case keep-alive 240
tcp_keep_alive() { # an idle host with a short keep-alive time stays, and so does a busy one
    one_memory
    connect "$one" --keep-alive-tmo=8
    device "$ctrl" 1
    nap 18
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl") after being idle"
    fio --name=busy --thread --filename="$dev" --direct=1 --ioengine=io_uring --rw=write --bs=1m --iodepth=8 \
        --size=64m --time_based --runtime=12
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl") after being busy"
    ! dmesg_of_case | grep -E "$ctrl: .*(error recovery|keep.alive)" || fail "the controller was lost"
}

# interrupted VERB: I/O runs, VERB takes the target away, it comes back, and all data is there.
interrupted() {
    target_start <<<"subsystem $one any
        namespace 1 file 64 /run/ns1.img"
    connect "$one" --ctrl-loss-tmo=60 --reconnect-delay=1 --hdr-digest
    device "$ctrl" 1
    local job
    dd if=/usr/bin/bash of="$dev" bs=64k seek=512 oflag=direct count=16
    verify "$dev" 4k 4m --rate_iops=300 &
    job=$!
    soon 40 has_written "$dev" 150 || fail "no I/O"
    "$1"
    nap 3
    ! is_live "$ctrl" || fail "$ctrl is live without a target"
    kill -0 "$job" || fail "I/O failed at once when the target went"
    target_again
    soon 40 is_live "$ctrl" || fail "$ctrl is $(state "$ctrl") 40 s after the target came back"
    wait "$job" || fail "I/O failed or did not verify"
    echo 3 >/proc/sys/vm/drop_caches
    cmp -n $((1 << 20)) /usr/bin/bash "$dev" 0 $((32 << 20)) || fail "what was written before is not there"
}

add_case restart 240 short
tcp_restart() { interrupted target_kill; }

add_case sigterm 240 weft
tcp_sigterm() { interrupted weft_stop; } # which also wants exit status 0
