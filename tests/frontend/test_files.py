"""What the files of a model folder mean."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.frontend.files import load_text
from ridgeline.frontend.spelling import BYTE_OF_CHARACTER


def folder(tmp_path: Path, *, post_bos: bool = False, **config: object) -> Path:
    """A byte-level tokenizer.json with a start token in its post-processor, and a tokenizer_config.json."""
    vocabulary = {piece: i for i, piece in enumerate([*BYTE_OF_CHARACTER, "<s>", "</s>", "<tool>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken("<s>", special=True), AddedToken("</s>", special=True, rstrip=True)]
    )
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    if post_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    return tmp_path


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    """Some files were saved while training; a prompt is never cut or filled up."""
    tokenizer = load_text(folder(tmp_path)).need_tokenizer()
    assert len(tokenizer.encode("abcdef")) == 6
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257)


def test_start_token_by_post_processor_and_by_config(tmp_path: Path) -> None:
    """The config's add_bos_token overrules the post-processor in both directions."""
    assert load_text(folder(tmp_path, post_bos=True)).need_tokenizer().encode("a")[0] == 256
    assert load_text(folder(tmp_path, post_bos=True)).need_tokenizer().encode("<s>a").count(256) == 1
    assert 256 not in load_text(folder(tmp_path, post_bos=True, add_bos_token=False)).need_tokenizer().encode(
        "a"
    )
    assert load_text(folder(tmp_path, add_bos_token=True)).need_tokenizer().encode("a")[0] == 256


def test_special_tokens_named_by_the_config(tmp_path: Path) -> None:
    """A token that only tokenizer_config.json calls special is one."""
    plain = load_text(folder(tmp_path)).need_tokenizer()
    assert 258 not in plain.special_ids
    named = load_text(folder(tmp_path, additional_special_tokens=["<tool>"])).need_tokenizer()
    assert 258 in named.special_ids and named.encode("<tool>") == [258]


def test_control_token_that_swallows_space(tmp_path: Path) -> None:
    """rstrip: the guarded way eats the same space as the backend does."""
    path = folder(tmp_path, chat_template="{{ messages[0].content }}</s>  \n x")
    text = load_text(path)
    guarded = text.encode_chat([{"role": "user", "content": "</s>"}])
    tokenizer = text.need_tokenizer()
    assert guarded.token_ids[-2:] == tokenizer.encode("</s>  \n x")[-2:]
    assert guarded.token_ids.count(257) == 1


def test_templates_by_file(tmp_path: Path) -> None:
    """chat_template.jinja beats the config's; a list of templates is by name; --chat-template beats all."""
    messages = [{"role": "user", "content": "x"}]
    path = folder(
        tmp_path, chat_template=[{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    )
    assert load_text(path).encode_chat(messages).text == "D"
    assert load_text(path).encode_chat(messages, tools=[{}]).text == "T"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert load_text(path).encode_chat(messages).text == "J"
    assert load_text(path, chat_template="{{ 'I' }}").encode_chat(messages).text == "I"
    (tmp_path / "mine.txt").write_text("F")
    assert load_text(path, chat_template=str(tmp_path / "mine.txt")).encode_chat(messages).text == "F"
    with pytest.raises(ConfigError, match="no such file"):
        load_text(path, chat_template="nowhere.jinja")


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    """A config alone (dummy weights) makes a layer for token ids."""
    assert load_text(tmp_path).tokenizer is None


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_text(tmp_path)
    folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        load_text(tmp_path)
