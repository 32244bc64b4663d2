"""The demo's pools by name. Imports nothing: the supervisor waits for them."""

# Name, model, region, failure domain, replicas.
POOLS = (
    ("eu-a-8b", "llama-8b", "eu", "eu-a", 2),
    ("us-b-8b", "llama-8b", "us", "us-b", 1),
    ("eu-a-32b", "qwen-32b", "eu", "eu-a", 1),
)
REAL_POOL = "vllm-cpu"
