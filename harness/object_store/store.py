"""Defines the store `s3`: an S3-compatible server beside the nodes, behind the harness's proxy. The store ends with the
job."""

from __future__ import annotations

from harness.node.node_paths import KEY_ENV, KEY_NAME
from harness.trainers.shared.stores import Store

PORT = 29500
BUCKET = "checkpoints"
# fsspec reads settings of a file system from the environment; botocore wants some region.
_KEYS = f'AWS_ACCESS_KEY_ID={KEY_NAME} AWS_SECRET_ACCESS_KEY=${KEY_ENV} AWS_DEFAULT_REGION=us-east-1 exec "$@"'

STORE = Store(
    server=(
        *("{python}", "-m", "harness.object_store.s3_store"),
        *("{control}", str(PORT), "{run_dir}/object_store", BUCKET),
    ),
    around=("env", f"FSSPEC_S3_ENDPOINT_URL=http://{{control}}:{PORT}", "sh", "-c", _KEYS, "sh"),
    place=f"s3://{BUCKET}/job",
)
