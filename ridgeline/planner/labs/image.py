"""Lab 4, the image budget, and the figure of one photograph's way. Source: "The Mechanics of LLM Inference",
Vision-language inference."""

from dataclasses import dataclass, replace

from ridgeline.ledger import closed
from ridgeline.ledger.closed import Shape
from ridgeline.planner.lab import Bar, Control, Lab, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.parts import ASSUMED, Values, bars, chart, choice, curve, gb, number, text, whole
from ridgeline.spec.hardware import HardwareSpec, hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A vision transformer: parameters, layers, width, and patches along a tile's side."""

    params: float
    num_layers: int
    width: int
    side: int

    @property
    def patches(self) -> int:
        return self.side**2


def _towers() -> dict[str, Encoder]:
    """The source's nominal So400m (SigLIP, Zhai et al. 2023; published towers have 413 to 428e6), then those
    of the models that cut an image into tiles of one size."""
    seen = {name: vision for name in parts.MODELS if (vision := parts.model(name).vision)}
    nominal = {f"so400m, {pixels} px": Encoder(params=400e6, num_layers=27, width=1152, side=pixels // 14)
               for pixels in (384, 224)}
    return nominal | {f"of {name}": Encoder(
        params=sum(param.num_elements for param in vision.encoder), num_layers=vision.num_layers,
        width=vision.hidden_size, side=vision.tile_size // vision.patch_size)
        for name, vision in seen.items() if vision.rule != "whole_steps"}


ENCODERS = _towers()
_MHA = Shape(num_params=7.3e9, num_layers=32, width=4096, num_kv_heads=32, kv_elements=2 * 32 * 4096,
             hidden_size=4096, vocab_size=152064)
BACKBONES = {"7b, full mha": _MHA, "7b, gqa-8": replace(_MHA, num_kv_heads=8, kv_elements=2 * 32 * 1024)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Photo:
    """One request: images of equal tiles and a text, through an encoder and a backbone on one device."""

    tiles: int
    images: int
    text_tokens: int
    pooling: int
    encoder: Encoder
    backbone: Shape
    cache_bytes: float
    device: HardwareSpec

    @staticmethod
    def of(values: Values) -> "Photo":
        name = text(values, "model")
        return Photo(tiles=whole(values, "tiles"), images=whole(values, "images"),
                     text_tokens=whole(values, "text"), pooling=int(text(values, "pooling")),
                     encoder=ENCODERS[text(values, "encoder")],
                     backbone=BACKBONES[name] if name in BACKBONES else parts.shape(name),
                     cache_bytes=parts.KV_BYTES[text(values, "cache")],
                     device=hardware(text(values, "device")))

    @property
    def patch_tokens(self) -> int:
        return self.images * self.tiles * self.encoder.patches

    @property
    def visual_tokens(self) -> float:
        return closed.visual_tokens(self.patch_tokens, self.pooling)

    @property
    def prompt_tokens(self) -> float:
        return self.visual_tokens + self.text_tokens

    @property
    def encoder_flops(self) -> float:
        e = self.encoder
        return closed.encoder_flops(e.params, e.num_layers, e.width, e.patches, self.images * self.tiles)

    @property
    def prompt_flops(self) -> float:
        return closed.prefill_flops(self.backbone, self.prompt_tokens)

    def kv_bytes(self, tokens: float) -> float:
        return closed.kv_bytes(self.backbone, tokens, self.cache_bytes)

    def prefill_s(self, tokens: float) -> float:
        return closed.prefill_flops(self.backbone, tokens) / (self.device.peak_rate * ASSUMED.prefill)

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds before the first token, by stage."""
        return {"preprocess": self.images * self.tiles * ASSUMED.tile_s,
                "vision encoder": self.encoder_flops / (self.device.peak_rate * ASSUMED.encoder),
                "prefill": self.prefill_s(self.prompt_tokens)}

    @property
    def weight_bytes(self) -> float:
        return 2 * self.backbone.num_params

    @property
    def conversations(self) -> int:
        return closed.max_sequences(self.device.marketed_bytes, self.weight_bytes,
                                    self.kv_bytes(self.prompt_tokens), ASSUMED.workspace_bytes)


def _compute(values: Values) -> Result:
    photo = Photo.of(values)
    num_tiles = photo.images * photo.tiles
    stages, kv, device = photo.stages_s, photo.kv_bytes(photo.prompt_tokens), photo.device
    ttft, question = sum(stages.values()), photo.text_tokens
    asked, read_s = photo.prefill_s(question), photo.weight_bytes / device.bytes_per_s
    tiled = num_tiles * closed.pooled_tokens(photo.encoder.side, photo.pooling)
    numbers = (
        number("patch_tokens", "Patch tokens", photo.patch_tokens, "tokens",
               "images * tiles * patches", f"{num_tiles} * {photo.encoder.patches}"),
        number("visual_tokens", "Visual tokens", photo.visual_tokens, "tokens", "patch tokens / pooling",
               f"{photo.patch_tokens} / {photo.pooling}", "nominal"),
        number("visual_tokens", "Visual tokens, each tile's grid pooled by squares", tiled, "tokens",
               "images * tiles * ceil(side / sqrt(pooling))^2", f"side {photo.encoder.side}", "exact"),
        number("prompt_tokens", "Prompt tokens", photo.prompt_tokens, "tokens", "visual + text",
               f"{photo.visual_tokens:g} + {question}", "nominal"),
        number("preprocess", "Preprocessing on a processor", stages["preprocess"], "s", "tiles * time a tile",
               f"{num_tiles} * {ASSUMED.tile_s * 1e3:g} ms (assumed)"),
        number("encoder", "Vision encoder", stages["vision encoder"], "s",
               "tiles (2Pn + 4Ln^2d) / (peak * share)",
               f"{photo.encoder_flops:.3g} FLOP, {ASSUMED.encoder:.0%} of {device.peak_rate:.3g}", "nominal"),
        number("prefill", "Prefill", stages["prefill"], "s", "(2PN + 2LN^2d) / (peak * share)",
               f"{photo.prompt_flops:.3g} FLOP, {ASSUMED.prefill:.0%} of {device.peak_rate:.3g}", "nominal"),
        number("ttft", "TTFT", ttft, "s", "preprocess + encoder + prefill", "", "nominal"),
        number("vision_share", "Vision share of TTFT", 1 - stages["prefill"] / ttft, "",
               "(preprocess + encoder) / TTFT", f"1 - {stages['prefill']:.3g} / {ttft:.3g}", "nominal"),
        number("image_share", "Share of TTFT that the image is to blame for", 1 - asked / ttft, "",
               "1 - text-only prefill / TTFT", f"1 - {asked:.3g} / {ttft:.3g}", "nominal"),
        number("ttft_text", "TTFT of the text alone, by FLOPs", asked, "s", "(2PN + 2LN^2d) / (peak * share)",
               f"{question} tokens", "nominal"),
        number("ttft_text", "The same, with the weights read", max(asked, read_s), "s",
               "max(FLOPs time, weights / bandwidth)", gb(photo.weight_bytes), "exact"),
        number("kv_per_request", "KV per request", kv, "bytes", "prompt tokens * KV per token",
               f"{photo.prompt_tokens:g} * {photo.kv_bytes(1):g} B", "nominal"),
        number("conversations", "Concurrent conversations", photo.conversations, "conversations",
               "floor((memory - bf16 weights - workspace) / KV per request)",
               f"({gb(device.marketed_bytes)} - {gb(photo.weight_bytes)} - 2 GB) / {gb(kv)}", "nominal"),
        number("text_ratio", "Against the text-only prompt", photo.visual_tokens / question, "",
               "visual / text tokens", f"{photo.visual_tokens:g} / {question}", "nominal"))
    tiles = tuple(range(1, 26))
    charts = (
        chart("ttft", "What stacks up before the first token", "", "s",
              *bars(("TTFT",), {name: [seconds] for name, seconds in stages.items()}), stacked=True),
        chart("tiles", "TTFT against tiles", "tiles an image", "s",
              curve("TTFT", tiles, lambda n: sum(replace(photo, tiles=int(n)).stages_s.values()))),
        chart("residents", "Conversations against tiles", "tiles an image", "",
              curve("conversations", tiles, lambda n: replace(photo, tiles=int(n)).conversations)))
    bar = Bar(key="memory", title=device.name, total=device.marketed_bytes,
              parts=(("weights", photo.weight_bytes), ("workspace", ASSUMED.workspace_bytes),
                     (f"{photo.conversations} conversations", photo.conversations * kv)))
    return Result(numbers=numbers, charts=charts, bars=(bar,), notes=(
        "An image is not one token of cost: it is prefill and cache that grow with its tiles.",
        "Preprocessing is the crudest number here: it runs on a processor and no GPU profile shows it.",
        "A second question about the same image is a short prompt where its prefix is cached.",
        f"Padded to {photo.tiles} tiles, a batch of one such image and seven of one tile wastes "
        f"{closed.padded_waste((photo.tiles, *[1] * 7), photo.tiles):.0%} of the encoder's work."))


_MODEL = choice("model", "Language backbone", "7b, full mha", (*BACKBONES, *parts.MODELS),
                "the two 7b are the source's: 7.3e9 parameters, 32 layers of width 4096")
_CONTROLS: tuple[Control, ...] = (
    parts.slider("tiles", "Tiles per image", 13, 1, 25),
    choice("encoder", "Vision encoder", next(iter(ENCODERS)), tuple(ENCODERS)),
    choice("pooling", "Connector pooling", "4", ("1", "4", "9", "16"), "patches that become one token"),
    parts.slider("images", "Images per request", 1, 1, 16), _MODEL,
    parts.slider("text", "Text tokens", 30, 1, 4096, unit="tokens", log=True), parts.CACHE, parts.DEVICE)
IMAGE = Lab(key="image", title="Image budget", compute=_compute, controls=_CONTROLS,
            lead="What tiling, pooling and the backbone's attention make an image cost.")
_PLACES = ("file", "decode and resize", "tiles", "patches", "vision encoder", "connector", "prompt",
           "prefill", "first token", "cache")


def _photograph(values: Values) -> Result:
    step = whole(values, "step")
    photo = Photo.of({**values, "images": 1})
    spent = photo.stages_s
    until = {"preprocess": 3, "vision encoder": 5, "prefill": 8}  # the place at which a stage is over
    seconds = sum(spent[name] for name, place in until.items() if step >= place)
    tokens = (0, 0, 0, photo.patch_tokens, photo.patch_tokens, photo.visual_tokens, photo.prompt_tokens,
              photo.prompt_tokens, photo.prompt_tokens + 1, photo.prompt_tokens + 1)[step - 1]
    flops = photo.encoder_flops * (step >= 5) + photo.prompt_flops * (step >= 8)
    kv = photo.kv_bytes(photo.prompt_tokens) if step >= 8 else 0.0
    numbers = (
        number("place", "Place", _PLACES[step - 1]), number("tokens", "Tokens", tokens, "tokens"),
        number("elapsed", "Time since it arrived", seconds, "s", "sum of the stages so far", "", "nominal"),
        number("flops", "FLOPs so far", flops, "FLOP", "encoder, then prefill", "", "nominal"),
        number("kv", "Cache left behind", kv, "bytes", "prompt tokens * KV per token", "", "nominal"),
        number("prefill_over_encoder", "Prefill over encoder", photo.prompt_flops / photo.encoder_flops, "",
               "FLOPs / FLOPs", f"{photo.prompt_flops:.3g} / {photo.encoder_flops:.3g}", "nominal"))
    clock = [sum(spent[name] for name, place in until.items() if at >= place) for at in range(1, step + 1)]
    charts = (chart("clock", "Time until each place", "", "s", *bars(_PLACES, {"elapsed": clock})),)
    return Result(numbers=numbers, charts=charts, num_steps=len(_PLACES), notes=(
        f"{_PLACES[step - 1].capitalize()}: {seconds * 1e3:.3g} ms after it arrived, {tokens:.0f} tokens.",
        "The encoder runs once an image and has no decode: it belongs with prefill, and its output, not the "
        "pixels, is what to cache.",
        "The cache outlives both: it stays as long as the conversation.",
        "How long the prompt is shows only once the image is decoded and tiled; and its cache comes in one "
        "lump, not token by token."))


PHOTOGRAPH = Lab(
    key="photograph", title="One photograph", compute=_photograph,
    lead="The way of one image from a file to the cache it leaves behind.",
    controls=(parts.stepper(len(_PLACES)), *(c for c in _CONTROLS if c.key != "images")))
