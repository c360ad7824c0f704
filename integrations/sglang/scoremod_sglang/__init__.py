"""scoremod as an attention backend of SGLang. SGLang calls register() in each process, by the entry point in pyproject.toml."""

__all__ = ["register"]


def register():
    """Makes "scoremod" a choice of `--attention-backend`."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.server_args import add_attention_backend_choices

    def create(runner):
        from scoremod_sglang.backend import ScoremodAttnBackend

        return ScoremodAttnBackend(runner)

    register_attention_backend("scoremod")(create)
    add_attention_backend_choices(["scoremod"])
