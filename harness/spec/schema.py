"""Makes the JSON Schema of scenario files: the common keys, and the keys of every fault and every score."""

from typing import Any

from harness.faults.contract import fault_names, load_fault
from harness.spec.expected_scores import ScoreBounds, bounds_schema
from harness.spec.scenario import Scenario


def json_schema(scores: ScoreBounds) -> dict[str, Any]:
    schema = Scenario.model_json_schema()
    definitions = schema["$defs"]
    core = definitions.pop("FaultSpec")["properties"]
    definitions.pop("Fault", None)
    base = {key: core[key] for key in ("id", "when", "target")}
    variants = []
    for name in fault_names():
        variant, own = _variant(name, base)
        variants.append(variant)
        definitions |= own
    schema["properties"]["faults"]["items"] = {"oneOf": variants}
    schema["properties"]["expect"], own = bounds_schema(scores)
    definitions |= own
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _variant(name: str, base: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    fault = load_fault(name).model_json_schema()
    variant = {
        "title": name,
        "description": fault.get("description", ""),
        "type": "object",
        "properties": base | {"fault": {"const": name}} | fault.get("properties", {}),
        "required": ["id", "fault", "when", "target", *fault.get("required", [])],
        "additionalProperties": False,
    }
    return variant, fault.pop("$defs", {})
