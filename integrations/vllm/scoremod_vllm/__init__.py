"""scoremod as vLLM's CUSTOM attention backend. vLLM calls register() in each process, by the entry point in pyproject.toml."""

__all__ = ["register"]


def register():
    """Names scoremod_vllm.backend.ScoremodBackend as vLLM's CUSTOM backend; `--attention-backend CUSTOM` chooses it."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "scoremod_vllm.backend.ScoremodBackend")
