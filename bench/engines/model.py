# SPDX-License-Identifier: Apache-2.0
"""Makes the model that the engines run: a tiny Llama's configuration, without weights (the engines
fill them in), and a tokenizer, trained on this repository's licence. Runs in an engine's Python."""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = 2048
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "torch_dtype": "float32",
}


def tokenizer():
    """
    Byte-level BPE with exactly VOCABULARY tokens: the licence yields fewer, the rest are never met
    in a text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    made.train([str(ROOT / "LICENSE")], trainer)
    made.add_tokens([f"<unused {number}>" for number in range(VOCABULARY - made.get_vocab_size())])
    return made


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
