"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3's layers whose attention sees what an index picks."""

from dataclasses import dataclass, replace

from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.sparse.spec import SparseSpec
from ridgeline.models.deepseek import DEEPSEEK_V3, DeepSeek
from ridgeline.models.read import ConfigReader
from ridgeline.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseDeepSeek(DeepSeek):
    """See the module. The layers that predict further tokens are left out."""

    def spec(self, config: ConfigReader) -> ModelSpec:
        """See DeepSeek. Every layer has an index of its own."""
        config.inert(("indexer_rope_interleave", "scale_fmt"))
        if set(config.texts("indexer_types")) - {"full"}:
            raise config.refuse("indexer_types", "not known: an index in every layer is")
        return DeepSeek.spec(self, config)

    def _attention(self, config: ConfigReader, hidden: int, eps: float) -> "MlaSpec | SparseSpec":
        latent = DeepSeek._attention(self, config, hidden, eps)
        assert isinstance(latent, MlaSpec)
        return SparseSpec(latent=latent, index_heads=config.size("index_n_heads"),
                          index_dim=config.size("index_head_dim"), top_k=config.size("index_topk"))


def _named(name: str) -> SparseDeepSeek:
    base = DEEPSEEK_V3
    return SparseDeepSeek(name=name, max_position=base.max_position, first_dense=base.first_dense,
                          shared=base.shared, routed_scale=base.routed_scale, sigmoid=True)


DEEPSEEK_V32, GLM5 = _named("deepseek_v32"), _named("glm_moe_dsa")
KIMI_K2 = replace(DEEPSEEK_V3, name="kimi_k2")
