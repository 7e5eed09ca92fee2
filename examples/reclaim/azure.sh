#!/bin/bash
# Reclaims a Spot VM as Azure does: a simulated eviction, with a notice of 30 s in Scheduled Events. A VM of its own that
# was deallocated by it is started again; the machines of a scale set are brought back by the scale set.
#   azure.sh reclaim MACHINE SECONDS RUN | restore MACHINE RUN | heal RUN
set -euo pipefail
die() { echo "$*" >&2; exit 1; }
TAG=chaos-run

start_again() { # JMESPath condition on what carries our tag
    local id
    az resource list --tag "$TAG=$run" --query "[?type=='Microsoft.Compute/virtualMachines'$1].id" --output tsv |
        while read -r id; do
            az vm start --ids "$id" --output none
            az tag update --resource-id "$id" --operation Delete --tags "$TAG=$run" --output none
        done
}

case ${1-} in
reclaim)
    seconds=$3 run=$4
    ((seconds == 30)) || die "a notice of $seconds s: Azure gives 30 s"
    id=${CHAOS_PROVIDER_ID-}
    compute='^azure://(/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/Microsoft.Compute'
    member="$compute/virtualMachineScaleSets/([^/]+)/virtualMachines/([0-9]+))\$" single="$compute/virtualMachines/([^/]+))\$"
    if [[ $id =~ $member ]]; then
        az vmss simulate-eviction --resource-group "${BASH_REMATCH[2]}" --name "${BASH_REMATCH[3]}" \
            --instance-id "${BASH_REMATCH[4]}" --output none
    elif [[ $id =~ $single ]]; then
        group=${BASH_REMATCH[2]} name=${BASH_REMATCH[3]}
        az tag update --resource-id "${BASH_REMATCH[1]}" --operation Merge --tags "$TAG=$run" --output none
        az vm simulate-eviction --resource-group "$group" --name "$name" --output none
    else
        die "CHAOS_PROVIDER_ID=$id: not a VM of Azure; the harness must be allowed to read nodes"
    fi
    ;;
restore) run=$3 && start_again " && name=='$2'" ;;
heal) run=$2 && start_again "" ;;
*) die "usage: azure.sh reclaim MACHINE SECONDS RUN | restore MACHINE RUN | heal RUN" ;;
esac
