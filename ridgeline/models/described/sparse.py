"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3's layers whose attention sees what an index picks."""

from dataclasses import dataclass, fields, replace

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

    def _attention(self, config: ConfigReader, hidden: int, eps: float) -> MlaSpec:
        latent = DeepSeek._attention(self, config, hidden, eps)
        return SparseSpec(**{field.name: getattr(latent, field.name) for field in fields(latent)},
                          index_heads=config.size("index_n_heads"), index_dim=config.size("index_head_dim"),
                          top_k=config.size("index_topk"))


_V3 = {field.name: getattr(DEEPSEEK_V3, field.name) for field in fields(DEEPSEEK_V3)}
DEEPSEEK_V32 = SparseDeepSeek(**_V3 | {"name": "deepseek_v32"})
GLM5 = SparseDeepSeek(**_V3 | {"name": "glm_moe_dsa"})
KIMI_K2 = replace(DEEPSEEK_V3, name="kimi_k2")
