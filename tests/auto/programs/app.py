"""A service that answers with a model, as it would be without us."""

import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())


async def app(scope: dict, receive: object, send: object) -> None:
    """Answer every request."""
    if scope["type"] != "http":
        return
    with torch.no_grad():
        shape = tuple(model(torch.ones(1, 2)).shape)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(shape).encode()})


def wsgi(environ: dict, start_response: object) -> list[bytes]:
    """Do the same for gunicorn."""
    with torch.no_grad():
        shape = tuple(model(torch.ones(1, 2)).shape)
    start_response("200 OK", [])
    return [str(shape).encode()]
