"""The parts of Grafana's dashboard JSON (schema version 38) that ours uses, as a JSON Schema that refuses others."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string", "minLength": 1}
WHOLE = {"type": "integer", "minimum": 0}
DATASOURCE = {
    "type": "object",
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
    "required": ["type", "uid"],
    "additionalProperties": False,
}
PLACE = {
    "type": "object",
    "properties": {
        "x": {**WHOLE, "maximum": 23},
        "y": WHOLE,
        "w": {"type": "integer", "minimum": 1, "maximum": 24},
        "h": {"type": "integer", "minimum": 1},
    },
    "required": ["x", "y", "w", "h"],
    "additionalProperties": False,
}
TARGET = {
    "type": "object",
    "properties": {
        "refId": {"type": "string", "pattern": "^[A-Z]$"},
        "datasource": DATASOURCE,
        "expr": TEXT,
        "legendFormat": {"type": "string"},
        "instant": {"type": "boolean"},
        "format": {"enum": ["time_series", "heatmap", "table"]},
    },
    "required": ["refId", "datasource", "expr"],
    "additionalProperties": False,
}
STEPS = {
    "type": "array",
    "minItems": 1,
    "prefixItems": [{"properties": {"value": {"type": "null"}}}],
    "items": {
        "type": "object",
        "properties": {"color": TEXT, "value": {"type": ["number", "null"]}},
        "required": ["color", "value"],
        "additionalProperties": False,
    },
}
UNITS = ["none", "short", "percentunit", "s", "ops", "currencyUSD"]
DEFAULTS = {
    "type": "object",
    "properties": {
        "unit": {"enum": UNITS},
        "min": {"type": "number"},
        "max": {"type": "number"},
        "custom": {"type": "object"},
        "color": {"type": "object", "properties": {"mode": {"enum": ["thresholds", "palette-classic"]}}},
        "mappings": {"type": "array", "items": {"type": "object", "required": ["type", "options"]}},
        "thresholds": {
            "type": "object",
            "properties": {"mode": {"enum": ["absolute", "percentage"]}, "steps": STEPS},
            "required": ["mode", "steps"],
            "additionalProperties": False,
        },
    },
    "required": ["unit"],
    "additionalProperties": False,
}
PANEL = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": ["stat", "timeseries", "heatmap"]},
        "title": TEXT,
        "description": TEXT,
        "datasource": DATASOURCE,
        "gridPos": PLACE,
        "targets": {"type": "array", "minItems": 1, "items": TARGET},
        "fieldConfig": {
            "type": "object",
            "properties": {"defaults": DEFAULTS, "overrides": {"type": "array"}},
            "required": ["defaults", "overrides"],
            "additionalProperties": False,
        },
        "options": {"type": "object"},
    },
    "required": ["id", "type", "title", "description", "datasource", "gridPos", "targets", "fieldConfig", "options"],
    "additionalProperties": False,
}
ROW = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"const": "row"},
        "title": TEXT,
        "collapsed": {"const": False},
        "gridPos": PLACE,
        "panels": {"type": "array", "maxItems": 0},
    },
    "required": ["id", "type", "title", "collapsed", "gridPos", "panels"],
    "additionalProperties": False,
}
VARIABLE = {
    "type": "object",
    "properties": {"name": TEXT, "type": {"enum": ["datasource", "query"]}, "query": {"type": ["string", "object"]}},
    "required": ["name", "type", "query", "current"],
}
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "title": TEXT,
        "uid": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
        "schemaVersion": {"const": 38},
        "version": {"type": "integer"},
        "refresh": TEXT,
        "time": {"type": "object", "required": ["from", "to"]},
        "templating": {"type": "object", "properties": {"list": {"type": "array", "items": VARIABLE}}},
        "annotations": {"type": "object", "required": ["list"]},
        "panels": {
            "type": "array",
            "items": {"if": {"properties": {"type": {"const": "row"}}}, "then": ROW, "else": PANEL},
        },
    },
    "required": ["title", "uid", "schemaVersion", "panels", "templating", "time"],
}
