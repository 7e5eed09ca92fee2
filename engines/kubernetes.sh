#!/bin/bash
# A real but old Kubernetes (1.20.2) on this host, built from Debian's source package: API server, controllers,
# scheduler and one kubelet on the Docker daemon of engines/docker.sh. For development; `make engines` leaves it out, as
# the build takes ten minutes of two idle cores. Knows no Indexed Jobs; any cluster of yours will do as well or better.
#   engines/kubernetes.sh build | start | stop | status | kubeconfig
. "$(dirname "$0")/common.sh"

STATE=$ENGINES_DIR/kubernetes
BIN=$STATE/bin
BRIDGE=chaos-kube0
GATEWAY=10.88.0.1
FORWARD=(FORWARD -i "$BRIDGE" -o "$BRIDGE" -j ACCEPT)
PROGRAMS=(etcd kube-apiserver kube-controller-manager kube-scheduler kubelet)
DOCKER=$(dirname "$0")/docker.sh
export KUBECONFIG=$STATE/kubeconfig

build() {
    need_root
    [ -x "$BIN/kubelet" ] && return
    local work=$STATE/build
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends golang-1.19-go golang-1.19-src rsync make gcc libc6-dev dpkg-dev \
        golang-github-modern-go-reflect2-dev etcd-server containernetworking-plugins iptables >&2
    mkdir -p "$work/lists/partial" "$work/go/src/k8s.io" "$BIN"
    local mirror
    mirror=$(mirror_of bookworm)
    [ -n "$mirror" ] || die "the source package is in Debian 12 (bookworm), which is not among this host's sources"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" >"$work/sources.list"
    local options=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::Lists=$work/lists")
    (cd "$work" && apt-get "${options[@]}" update && apt-get "${options[@]}" source --download-only kubernetes) >&2
    [ -d "$work/go/src/k8s.io/kubernetes" ] || dpkg-source -x "$work"/kubernetes_*.dsc "$work/go/src/k8s.io/kubernetes" >&2
    # The vendored reflect2 is older than Go 1.18 and breaks with it: an API server that answers in JSON dies now and then.
    local reflect=$work/go/src/k8s.io/kubernetes/vendor/github.com/modern-go/reflect2
    rm -rf "$reflect" && mkdir -p "$reflect"
    cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} "$reflect"
    export GOPATH=$work/go GO111MODULE=off CGO_ENABLED=0 GOCACHE=$work/cache PATH=/usr/lib/go-1.19/bin:$PATH
    cd "$work/go/src/k8s.io/kubernetes"
    make WHAT=cmd/kube-apiserver >&2 # also makes the generated code that the others need
    cp _output/local/bin/linux/*/kube-apiserver "$BIN"
    local program
    for program in kube-controller-manager kube-scheduler kubelet; do go build -o "$BIN/$program" "./cmd/$program"; done
    rm -rf "$work"
}

run() { # PROGRAM ARGUMENT…: in the background, known by its pid
    local program=$1 path
    shift
    pid_of "$STATE/$program.pid" "${program:0:15}" >/dev/null && return
    path=$BIN/$program
    [ -x "$path" ] || path=$(command -v "$program") || die "$program is not there; run engines/kubernetes.sh build"
    setsid "$path" "$@" >>"$STATE/log/$program.log" 2>&1 </dev/null &
    echo $! >"$STATE/$program.pid"
}

api() { curl --silent --fail --max-time 5 --cacert "$STATE/pki/apiserver.crt" -H "Authorization: Bearer $(cat "$STATE/token")" "https://127.0.0.1:16443$1"; }
ready() { api /api/v1/nodes/m1 | tr -d ' \n' | grep -q '"type":"Ready","status":"True"'; }

settings() {
    mkdir -p "$STATE"/{pki,log,cni}
    [ -e "$STATE/pki/sa.key" ] || openssl genrsa -out "$STATE/pki/sa.key" 2048 2>/dev/null
    [ -e "$STATE/token" ] || (umask 077 && head -c 24 /dev/urandom | base64 | tr -d '/+=\n' >"$STATE/token")
    (umask 077 && echo "$(cat "$STATE/token"),admin,admin,system:masters" >"$STATE/tokens.csv")
    (umask 077 && cat >"$KUBECONFIG") <<END
apiVersion: v1
kind: Config
clusters: [{name: chaos, cluster: {server: "https://127.0.0.1:16443", certificate-authority: "$STATE/pki/apiserver.crt"}}]
users: [{name: admin, user: {token: "$(cat "$STATE/token")"}}]
contexts: [{name: chaos, context: {cluster: chaos, user: admin, namespace: default}}]
current-context: chaos
END
    cat >"$STATE/cni/10-chaos.conf" <<END
{"cniVersion": "0.3.1", "name": "chaos", "type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": false,
 "ipam": {"type": "host-local", "dataDir": "$STATE/ipam", "ranges": [[{"subnet": "10.88.0.0/16", "gateway": "$GATEWAY"}]]}}
END
    ip link show "$BRIDGE" >/dev/null 2>&1 || { ip link add "$BRIDGE" type bridge && ip address add "$GATEWAY/16" dev "$BRIDGE" && ip link set "$BRIDGE" up; }
    # Docker forwards nothing by itself, and where the kernel shows it bridged packets, pods would not reach each other.
    iptables -C "${FORWARD[@]}" 2>/dev/null || iptables -I "${FORWARD[@]}"
}

# No registry: what keeps a pod's namespaces is made of our own image, and does nothing.
pause_image() {
    docker image inspect chaos-pause:1 >/dev/null 2>&1 && return
    docker image inspect chaos-node >/dev/null 2>&1 || die "no image chaos-node; run make image"
    printf 'FROM chaos-node\nENTRYPOINT ["sleep", "infinity"]\n' | DOCKER_BUILDKIT=0 docker build --quiet --tag chaos-pause:1 - >/dev/null
}

start() {
    need_root
    "$DOCKER" start
    DOCKER_HOST=$("$DOCKER" host)
    export DOCKER_HOST
    settings
    pause_image
    run etcd --data-dir "$STATE/etcd" --listen-client-urls http://127.0.0.1:12379 --advertise-client-urls http://127.0.0.1:12379 \
        --listen-peer-urls http://127.0.0.1:12380 --initial-advertise-peer-urls http://127.0.0.1:12380 \
        --initial-cluster default=http://127.0.0.1:12380
    run kube-apiserver --etcd-servers=http://127.0.0.1:12379 --bind-address=127.0.0.1 --secure-port=16443 --insecure-port=0 \
        --cert-dir="$STATE/pki" --token-auth-file="$STATE/tokens.csv" --authorization-mode=RBAC --endpoint-reconciler-type=none \
        --service-cluster-ip-range=10.96.0.0/16 --kubelet-preferred-address-types=InternalIP --service-account-issuer=https://kubernetes.default.svc \
        --service-account-key-file="$STATE/pki/sa.key" --service-account-signing-key-file="$STATE/pki/sa.key"
    wait_until 60 api /healthz || die "the API server does not come up; see $STATE/log"
    run kube-controller-manager --kubeconfig="$KUBECONFIG" --leader-elect=false --bind-address=127.0.0.1 --port=0 --secure-port=16444 \
        --cert-dir="$STATE/pki" --service-account-private-key-file="$STATE/pki/sa.key" --use-service-account-credentials=false
    run kube-scheduler --kubeconfig="$KUBECONFIG" --leader-elect=false --bind-address=127.0.0.1 --port=0 --secure-port=16445 --cert-dir="$STATE/pki"
    run kubelet --kubeconfig="$KUBECONFIG" --hostname-override=m1 --node-ip=$GATEWAY --address=$GATEWAY --port=16446 --read-only-port=0 \
        --healthz-port=0 --root-dir="$STATE/kubelet" --cert-dir="$STATE/pki" --anonymous-auth=true --authorization-mode=AlwaysAllow \
        --container-runtime=docker --docker-endpoint="$DOCKER_HOST" --pod-infra-container-image=chaos-pause:1 \
        --network-plugin=cni --cni-conf-dir="$STATE/cni" --cni-bin-dir=/usr/lib/cni --cni-cache-dir="$STATE/cni-cache" \
        --hairpin-mode=none --make-iptables-util-chains=false --cgroup-driver=cgroupfs --cgroups-per-qos=false \
        --enforce-node-allocatable= --eviction-hard= --image-gc-high-threshold=100 --fail-swap-on=false --cluster-dns=$GATEWAY
    wait_until 90 ready || die "the kubelet does not come up; see $STATE/log/kubelet.log"
}

stop() {
    local index pid containers
    for ((index = ${#PROGRAMS[@]} - 1; index >= 0; index--)); do
        pid=$(pid_of "$STATE/${PROGRAMS[index]}.pid" "${PROGRAMS[index]:0:15}") && end_process "$pid"
        rm -f "$STATE/${PROGRAMS[index]}.pid"
    done
    if "$DOCKER" status 2>/dev/null; then
        DOCKER_HOST=$("$DOCKER" host)
        export DOCKER_HOST
        containers=$(docker ps --all --quiet --filter label=io.kubernetes.pod.uid)
        [ -z "$containers" ] || xargs docker rm --force <<<"$containers" >/dev/null
    fi
    grep -o " $STATE/kubelet[^ ]*" /proc/mounts | sort -r | xargs --no-run-if-empty umount --lazy || true
    ip link delete "$BRIDGE" 2>/dev/null || true
    iptables -D "${FORWARD[@]}" 2>/dev/null || true
    rm -rf "$STATE"/{etcd,kubelet,ipam,cni,cni-cache}
}

case ${1:-} in
    build) build; say "built in $BIN" ;;
    start) start; say "running, CHAOS_KUBECONFIG=$KUBECONFIG" ;;
    stop) stop; say "stopped" ;;
    status) if api /healthz >/dev/null && ready; then say "running, CHAOS_KUBECONFIG=$KUBECONFIG"; else say "not running"; exit 1; fi ;;
    kubeconfig) echo "$KUBECONFIG" ;;
    *) die "write one of: build, start, stop, status, kubeconfig" ;;
esac
