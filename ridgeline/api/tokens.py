"""/tokenize and /detokenize: the text layer as clients see it."""

from functools import partial

from msgspec import UNSET

from ridgeline.api.answers import DetokenizeAnswer, TokenizeAnswer, to_json
from ridgeline.api.openai import OpenAI
from ridgeline.api.parse import parse
from ridgeline.api.prompts import beside, chat_prompt, check_token_ids
from ridgeline.api.types import DetokenizeRequest, TokenizeRequest
from ridgeline.base.errors import RequestError, invalid_value


async def tokenize(api: OpenAI, body: bytes) -> bytes:
    """The ids that a prompt or a conversation would be sent as. Raises RequestError."""
    request = parse(body, TokenizeRequest, api.served.limits)
    api.card(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("send either prompt or messages", param="prompt", code="invalid_value")
    idle = ("add_special_tokens",) if request.messages else ("add_generation_prompt", "chat_template_kwargs")
    for name in idle:
        if getattr(request, name):
            raise invalid_value(name, f"does nothing for {'messages' if request.messages else 'a prompt'}")
    text, served = api.served.text, api.served
    tokenizer = text.need_tokenizer()
    if request.messages is not None:
        chat = await chat_prompt(
            text,
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            variables=request.chat_template_kwargs,
        )
        ids = chat.token_ids
    else:
        prompt, special = request.prompt or "", request.add_special_tokens is not False
        ids = await beside(len(prompt), partial(tokenizer.encode, prompt, add_special=special))
    return to_json(
        TokenizeAnswer(
            count=len(ids),
            max_model_len=served.card.max_model_len,
            tokens=ids,
            token_strs=[tokenizer.token_text(token) for token in ids] if request.return_token_strs else UNSET,
        )
    )


async def detokenize(api: OpenAI, body: bytes) -> bytes:
    """The text of token ids, control tokens spelled out. Raises RequestError."""
    request = parse(body, DetokenizeRequest, api.served.limits)
    api.card(request.model)
    tokenizer = api.served.text.need_tokenizer("tokens")
    check_token_ids(request.tokens, "tokens", api.served.vocab_size)
    return to_json(DetokenizeAnswer(prompt=tokenizer.decode(request.tokens, skip_special=False)))
