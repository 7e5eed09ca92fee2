#!/bin/bash
# Reclaims a Spot instance as EC2 does: its notice on the metadata endpoint and in EventBridge, and the end two minutes
# later. Through AWS Fault Injection Service; CHAOS_FIS_ROLE_ARN is the role that its experiments run as.
#   aws.sh reclaim MACHINE SECONDS RUN | restore MACHINE RUN | heal RUN
set -euo pipefail
die() { echo "$*" >&2; exit 1; }
tagged() { aws fis "$1" --output text --query "$2[?tags.\"chaos-run\"=='$run'$3].id"; }

case ${1-} in
reclaim)
    seconds=$3 run=$4
    [[ ${CHAOS_PROVIDER_ID-} =~ ^aws:///([a-z0-9-]+)[a-z]/(i-[0-9a-f]+)$ ]] ||
        die "CHAOS_PROVIDER_ID=${CHAOS_PROVIDER_ID-}: not an EC2 instance; the harness must be allowed to read nodes"
    region=${BASH_REMATCH[1]} instance=${BASH_REMATCH[2]}
    export AWS_DEFAULT_REGION=$region
    ((seconds >= 120 && seconds <= 900)) || die "a notice of $seconds s: EC2 gives 120 to 900 s"
    [ -n "${CHAOS_FIS_ROLE_ARN-}" ] || die "CHAOS_FIS_ROLE_ARN is not set: the role that the experiment runs as"
    account=$(aws sts get-caller-identity --query Account --output text)
    template=$(aws fis create-experiment-template --query experimentTemplate.id --output text --cli-input-json "{
        \"description\": \"chaos run $run\",
        \"roleArn\": \"$CHAOS_FIS_ROLE_ARN\",
        \"stopConditions\": [{\"source\": \"none\"}],
        \"tags\": {\"chaos-run\": \"$run\"},
        \"targets\": {\"machine\": {
            \"resourceType\": \"aws:ec2:spot-instance\", \"selectionMode\": \"ALL\",
            \"resourceArns\": [\"arn:aws:ec2:$region:$account:instance/$instance\"]}},
        \"actions\": {\"reclaim\": {
            \"actionId\": \"aws:ec2:send-spot-instance-interruptions\",
            \"parameters\": {\"durationBeforeInterruption\": \"PT$(((seconds + 59) / 60))M\"},
            \"targets\": {\"SpotInstances\": \"machine\"}}}}")
    aws fis start-experiment --experiment-template-id "$template" --tags "chaos-run=$run" >/dev/null
    ;;
restore) ;; # whoever started the instance (an Auto Scaling group, Karpenter) starts another one
heal)
    run=$2
    for experiment in $(tagged list-experiments experiments " && state.status=='running'"); do
        aws fis stop-experiment --id "$experiment" >/dev/null
    done
    for template in $(tagged list-experiment-templates experimentTemplates ""); do
        aws fis delete-experiment-template --id "$template" >/dev/null
    done
    ;;
*) die "usage: aws.sh reclaim MACHINE SECONDS RUN | restore MACHINE RUN | heal RUN" ;;
esac
