"""A config's rotary fields -> RopeSpec, in the old spelling (rope_scaling) and the new (rope_parameters)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.models.read import ConfigReader

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")


def read_rope(config: ConfigReader, *, head_dim: int, max_position: int,
              aliases: Mapping[str, str], partial: float = 1.0, inert: Iterable[str] = ()) -> RopeSpec:
    """The rotary embedding of a model that has one setting for all layers.

    aliases: the family's own names of kinds ({"su": "longrope"}). partial: the share of a head that is
    rotated, when the config does not say. inert: fields that change nothing in this family. ConfigError for
    kinds that we do not have.
    """
    theta = config.number("rope_theta", 10_000.0)
    fraction = config.number("partial_rotary_factor", partial)
    original = config.optional_integer("original_max_position_embeddings")
    old, new = config.section("rope_scaling"), config.section("rope_parameters")
    return _rope(old or new or ConfigReader({}, "rope"), theta, fraction, original, head_dim, max_position,
                 aliases, inert)


def read_ropes(config: ConfigReader, *, head_dim: int, max_position: int,
               thetas: tuple[float, float], full_head_dim: int | None = None) -> tuple[RopeSpec, RopeSpec]:
    """The rotary embeddings of full and of windowed layers, where they have one each (Gemma 3).

    thetas: when the config does not say. full_head_dim: where full layers have wider heads (Gemma 4). In the
    old spelling scaling is of the full layers alone.
    """
    theta, local = config.number("rope_theta", thetas[0]), config.number("rope_local_base_freq", thetas[1])
    old, new = config.section("rope_scaling"), config.section("rope_parameters")
    full = old or (new.section("full_attention") if new else None)
    windowed = new.section("sliding_attention") if new else None
    if new is not None:
        new.finish()
    none = ConfigReader({}, "rope")
    return (_rope(full or none, theta, 1.0, None, full_head_dim or head_dim, max_position, {}),
            _rope(windowed or none, local, 1.0, None, head_dim, max_position, {}))


def _rope(section: ConfigReader, theta: float, fraction: float, original: int | None, head_dim: int,
          max_position: int, aliases: Mapping[str, str], inert: Iterable[str] = ()) -> RopeSpec:
    """One setting, and what stands outside of its section."""
    kind = section.text("rope_type", section.text("type", "default"))
    fraction = section.number("partial_rotary_factor", fraction)
    rope = RopeSpec(
        kind=aliases.get(kind, kind), theta=section.number("rope_theta", theta), max_position=max_position,
        rotary_dim=head_dim if kind == "proportional" else int(head_dim * fraction),
        original_max_position=original or section.optional_integer("original_max_position_embeddings"))
    if rope.theta <= 0:
        raise ConfigError(f"rope_theta = {rope.theta:g}: the base of the rotations must be above 0")
    rope = _scaled(rope, section, fraction)
    section.inert(("finetuned", "original_max_position_embeddings", *inert))
    section.finish()
    return rope


def reach(rope: RopeSpec) -> int:
    """The context in tokens that a model can be run to.

    Dynamic scaling does nothing within max_position, so its factor widens it; yarn is often added to a config
    whose max_position_embeddings is left at the length before scaling.
    """
    if rope.kind == "dynamic":
        return int(rope.max_position * rope.factor)
    if rope.kind == "yarn":
        return max(rope.max_position, int((rope.original_max_position or 0) * rope.factor))
    return rope.max_position


def _scaled(rope: RopeSpec, section: ConfigReader, fraction: float) -> RopeSpec:
    """The fields that the kind needs, added."""
    original = rope.original_max_position or rope.max_position
    if rope.kind == "default":
        return replace(rope, original_max_position=None)
    if rope.kind == "proportional":
        turning = int(fraction * rope.rotary_dim // 2)
        return replace(rope, original_max_position=None, turning_pairs=turning,
                       factor=section.number("factor", 1.0))
    if rope.kind in ("linear", "dynamic"):
        return replace(rope, factor=section.number("factor"), original_max_position=rope.max_position)
    if rope.kind == "llama3":
        return replace(rope, factor=section.number("factor"), original_max_position=original,
                       low_freq_factor=section.number("low_freq_factor"),
                       high_freq_factor=section.number("high_freq_factor"))
    rope = replace(rope, original_max_position=original,
                   factor=section.number("factor", rope.max_position / original),
                   attention_factor=section.optional_number("attention_factor"))
    if rope.kind == "yarn":
        return replace(rope, beta_fast=section.number("beta_fast", 32.0) or 32.0,
                       beta_slow=section.number("beta_slow", 1.0) or 1.0,
                       truncate=section.flag("truncate", True), mscale=section.optional_number("mscale"),
                       mscale_all_dim=section.optional_number("mscale_all_dim"))
    if rope.kind == "longrope":
        return replace(rope, short_factor=_factors(rope, section, "short_factor"),
                       long_factor=_factors(rope, section, "long_factor"))
    raise section.refuse("rope_type", f"not supported: known are {', '.join(KINDS)}")


def _factors(rope: RopeSpec, section: ConfigReader, name: str) -> tuple[float, ...]:
    factors = section.numbers(name)
    if len(factors) != rope.rotary_dim // 2:
        raise section.refuse(name, f"{len(factors)} numbers, where a rotary width of {rope.rotary_dim} needs "
                                   f"{rope.rotary_dim // 2}")
    return factors
