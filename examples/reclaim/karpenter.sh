#!/bin/bash
# Takes a machine as Karpenter takes one whose Spot notice has come: its NodeClaim is deleted. Karpenter taints and drains
# the machine, ends the instance, and starts another one for the pods that wait. Their own grace is the notice.
#   karpenter.sh reclaim MACHINE SECONDS RUN | restore MACHINE RUN | heal RUN
set -euo pipefail
die() { echo "$*" >&2; exit 1; }

case ${1-} in
reclaim)
    machine=$2
    claim=$(kubectl get nodeclaims --output "jsonpath={.items[?(@.status.nodeName=='$machine')].metadata.name}")
    [ -n "$claim" ] || die "no NodeClaim of Karpenter has the machine $machine"
    kubectl delete nodeclaim "$claim" --wait=false >&2
    ;;
restore | heal) ;; # Karpenter starts a machine as soon as pods wait for one
*) die "usage: karpenter.sh reclaim MACHINE SECONDS RUN | restore MACHINE RUN | heal RUN" ;;
esac
