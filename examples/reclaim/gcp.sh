#!/bin/bash
# Reclaims a Spot VM as Compute Engine does: a simulated maintenance event preempts it, with a notice of 30 s.
# A VM that was stopped by it is started again; one that was deleted is brought back by its instance group.
#   gcp.sh reclaim MACHINE SECONDS RUN | restore MACHINE RUN | heal RUN
set -euo pipefail
die() { echo "$*" >&2; exit 1; }
LABEL=chaos-run

start_again() { # FILTER: what carries our label and is stopped
    local name zone
    gcloud compute instances list --filter="labels.$LABEL=$run AND $1" --format='value(name,zone.basename())' |
        while read -r name zone; do
            [ "$(gcloud compute instances describe "$name" --zone="$zone" --format='value(status)')" != TERMINATED ] ||
                gcloud compute instances start "$name" --zone="$zone" --quiet >&2
            gcloud compute instances remove-labels "$name" --zone="$zone" --labels="$LABEL" --quiet >&2
        done
}

case ${1-} in
reclaim)
    seconds=$3 run=$4
    [[ ${CHAOS_PROVIDER_ID-} =~ ^gce://([a-z0-9:.-]+)/([a-z0-9-]+)/([a-z0-9-]+)$ ]] ||
        die "CHAOS_PROVIDER_ID=${CHAOS_PROVIDER_ID-}: not a VM of Compute Engine; the harness must be allowed to read nodes"
    place=(--project="${BASH_REMATCH[1]}" --zone="${BASH_REMATCH[2]}") name=${BASH_REMATCH[3]}
    ((seconds == 30)) || die "a notice of $seconds s: Compute Engine gives 30 s"
    gcloud compute instances add-labels "$name" "${place[@]}" --labels="$LABEL=$run" --quiet >&2
    gcloud compute instances simulate-maintenance-event "$name" "${place[@]}" --quiet >&2
    ;;
restore) run=$3 && start_again "name=$2" ;;
heal) run=$2 && start_again "name:*" ;;
*) die "usage: gcp.sh reclaim MACHINE SECONDS RUN | restore MACHINE RUN | heal RUN" ;;
esac
