"""What Home Assistant itself makes of messages: a program for a Python that has it. {topic: payload} on stdin."""

import asyncio
import json
import sys
import tempfile
from importlib import import_module

import homeassistant.components.mqtt.discovery as mqtt
from homeassistant.components.mqtt.schemas import DEVICE_DISCOVERY_SCHEMA
from homeassistant.components.mqtt.update import MQTT_JSON_UPDATE_SCHEMA
from homeassistant.core import HomeAssistant
from homeassistant.helpers import frame


async def main() -> None:
    hass = HomeAssistant(tempfile.mkdtemp())  # templates are checked within one
    frame.async_setup(hass)
    found = {}
    for topic, payload in json.load(sys.stdin).items():
        value = json.loads(payload) if payload.startswith("{") else payload
        if topic.endswith("/config"):
            matched = mqtt.TOPIC_MATCHER.fullmatch(topic.removeprefix("homeassistant/"))
            assert matched is not None, topic
            assert matched["component"] == "device", topic
            device = DEVICE_DISCOVERY_SCHEMA(value)
            for key, entity in device["components"].items():
                platform = entity.pop("platform")
                module = import_module(f"homeassistant.components.mqtt.{platform}")
                shared = {name: device[name] for name in mqtt.SHARED_OPTIONS if name in device}
                module.DISCOVERY_SCHEMA({**shared, "device": device["device"], **entity})
                found[f"{matched['object_id']} {key}"] = platform
        elif topic.endswith("/update"):
            MQTT_JSON_UPDATE_SCHEMA(value)
            found[topic] = "update"
    print(json.dumps(found))


asyncio.run(main())
