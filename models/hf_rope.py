"""How a config.json of Hugging Face transformers spells the rotary embedding, in versions 4 and 5.

Knows spellings, defaults and which of them contradict each other; the meaning of the parameters is
`rope`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

from cugraphs.models.config_checks import (
    check_choice,
    check_integer,
    check_number,
    check_object,
    same,
    shown,
    shown_key,
)
from cugraphs.models.rope import MAX_POSITIONS, ROPE_PARAMETERS, THETA_RANGE, RopeConfig


def rope_from_hf(
    config: Mapping[str, object],
    max_position_embeddings: int,
    source: str = "config.json",
) -> RopeConfig:
    """The rotary embedding that a config.json of transformers 4 or 5 asks for.

    Version 4 writes `rope_theta` and `rope_scaling`, version 5 `rope_parameters` with
    `rope_theta` inside. Where a file has both, they must agree.

    Args:
        config: The whole config.json.
        max_position_embeddings: In tokens; the original context where the file names none.
        source: What error messages begin with.

    Raises:
        ValueError: A value is malformed, or a type or parameter is not supported.
    """
    found = {
        key: _from_section(config, key, max_position_embeddings, source)
        for key in ("rope_parameters", "rope_scaling")
        if config.get(key) not in (None, {})
    }
    if len(found) == 2 and found["rope_parameters"] != found["rope_scaling"]:
        raise ValueError(
            f"{source}: rope_scaling is different from rope_parameters, expected the same "
            "rotary embedding in both; remove the one that does not belong to the model"
        )
    if not found:
        return RopeConfig(theta=_theta(config, {}, "", source))
    return next(iter(found.values()))


def _from_section(
    config: Mapping[str, object], key: str, max_position_embeddings: int, source: str
) -> RopeConfig:
    """Reads the object under `key`, which is `rope_parameters` or `rope_scaling`."""
    section = check_object(f"{source}: {key}", config[key])
    names = [name for name in ("rope_type", "type") if section.get(name) is not None]
    types = [
        check_choice(f"{source}: {key}.{n}", section[n], tuple(ROPE_PARAMETERS)) for n in names
    ]
    if len(set(types)) == 2:
        raise ValueError(
            f'{source}: {key}.type is "{types[1]}", expected "{types[0]}" as rope_type says'
        )
    rope_type = types[0] if types else "default"
    values: dict[str, object] = {}
    for name, value in section.items():
        if value is None or name in ("rope_theta", "rope_type", "type"):
            continue
        if name in ROPE_PARAMETERS[rope_type]:
            values[name] = value
        elif not _changes_nothing(name, value):
            raise ValueError(
                f"{source}: {key}.{shown_key(name)} is {shown(value)}, expected none: "
                f"rope_type {rope_type} with it is not supported"
            )
    if "original_max_position_embeddings" in ROPE_PARAMETERS[rope_type]:
        _fill_original(config, values, f"{source}: ", key, rope_type, max_position_embeddings)
    for name in ("factor", "low_freq_factor", "high_freq_factor"):
        if name in ROPE_PARAMETERS[rope_type] and name not in values:
            raise ValueError(
                f"{source}: {key}.{name} is missing, expected a number, as rope_type "
                f"{rope_type} needs it"
            )
    theta = _theta(config, section, key, source)
    try:
        return RopeConfig(rope_type=rope_type, theta=theta, **values)  # type: ignore[arg-type]
    except ValueError as error:
        message = str(error).removeprefix("RopeConfig: ")
        raise ValueError(f"{source}: {key}.{message}") from None


def _fill_original(
    config: Mapping[str, object],
    values: dict[str, object],
    prefix: str,
    key: str,
    rope_type: str,
    max_position_embeddings: int,
) -> None:
    """Puts the original context into `values`, and yarn's factor where the file leaves it out.

    Yarn's factor, where it is given, counts even if it is not max_position_embeddings over the
    original context: so does transformers 5, while some releases of 4 took that ratio instead.
    """
    name = "original_max_position_embeddings"
    outer = config.get(name)
    if outer is not None:  # Phi-3's place for it, which transformers 5 reads for every model
        check_integer(f"{prefix}{name}", outer, MAX_POSITIONS)
        if not same(values.setdefault(name, outer), outer):
            raise ValueError(
                f"{prefix}{key}.{name} is {shown(values[name])}, expected {shown(outer)} "
                f"as {name} beside it says"
            )
    if name not in values:
        if rope_type == "llama3" or (rope_type == "yarn" and "factor" not in values):
            raise ValueError(
                f"{prefix}{key}.{name} is missing, expected a positive integer, as rope_type "
                f"{rope_type} needs it"
            )
        values[name] = max_position_embeddings
    if rope_type == "yarn" and "factor" not in values:
        original = check_integer(f"{prefix}{key}.{name}", values[name], MAX_POSITIONS)
        values["factor"] = max_position_embeddings / original


def _changes_nothing(name: str, value: object) -> bool:
    """True for a parameter beyond the type's own that leaves the frequencies as they are."""
    if name in ("factor", "partial_rotary_factor", "attention_factor"):
        return same(value, 1)
    # The context of a type that does not read it; a note of how Yarn-Llama-2 was made.
    return name in ("original_max_position_embeddings", "finetuned")


def _theta(
    config: Mapping[str, object], section: Mapping[str, object], key: str, source: str
) -> float:
    """`rope_theta` inside `section` or beside it; 10,000 where neither has it."""
    inner, outer = section.get("rope_theta"), config.get("rope_theta")
    if inner is not None and outer is not None and not same(inner, outer):
        raise ValueError(
            f"{source}: {key}.rope_theta is {shown(inner)}, "
            f"expected {shown(outer)} as rope_theta beside it says"
        )
    where = f"{source}: rope_theta" if inner is None else f"{source}: {key}.rope_theta"
    value = outer if inner is None else inner
    return check_number(where, 10000.0 if value is None else value, *THETA_RANGE)
