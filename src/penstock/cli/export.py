"""`penstock export`: what other tools need to act on our decisions."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.options import QueueName, Shell, with_shell
from penstock.cli.output import emit, say
from penstock.cli.scale import seconds
from penstock.errors import ValidationError, shown
from penstock.scaler.signals import MOST_WORKERS

app = typer.Typer(help="Write what other tools need to act on our decisions.", no_args_is_help=True)

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # what Kubernetes takes everywhere
IMAGE = re.compile(r"[\w][\w./:@-]{0,254}")
SECRET_KEY = "dsn"  # noqa: S105 - a key's name


@with_shell
def keda(
    shell: Shell,
    queue: QueueName,
    *,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:APP", help="With --image: a Deployment of `penstock work` too.", show_default=False
        ),
    ] = None,
    image: Annotated[str | None, typer.Option(help="What its containers run.", show_default=False)] = None,
    deployment: Annotated[
        str | None, typer.Option(help="What is scaled; default: penstock-QUEUE.", show_default=False)
    ] = None,
    namespace: Annotated[str, typer.Option(help="Where it is.")] = "default",
    secret: Annotated[str, typer.Option(help="The Secret whose key dsn has the DSN of a reader.")] = "penstock",  # noqa: S107 - its name
    min_workers: Annotated[int, typer.Option(help="Never fewer.")] = 0,
    max_workers: Annotated[int, typer.Option(help="Never more.")] = 10,
    polling: Annotated[str, typer.Option(help="How often KEDA asks.")] = "5s",
    cooldown: Annotated[str, typer.Option(help="From the last worker wanted to none.")] = "60s",
    fallback: Annotated[
        int | None,
        typer.Option(help="Workers while PostgreSQL does not answer KEDA; default: at least one.", show_default=False),
    ] = None,
) -> None:
    """Print a ScaledObject and a TriggerAuthentication: KEDA asks PostgreSQL how many workers the scaler wants.

    A scaler must run somewhere, to decide: `penstock scale MODULE:APP --advise`. Nothing is read from a database.

    Example: penstock export keda mail --app shop.tasks:app --image registry.example/shop:1 | kubectl apply -f -
    """
    queue = validate.queue_name(queue)
    if (app is None) != (image is None):
        raise ValidationError("app, image: a Deployment needs both", field="app" if app is None else "image")
    least = validate.whole(min_workers, "min_workers", 0, MOST_WORKERS)
    most = validate.whole(max_workers, "max_workers", max(1, least), MOST_WORKERS)
    away = max(1, least) if fallback is None else validate.whole(fallback, "fallback", 0, most)
    name = named(deployment or f"penstock-{plain(queue)}", "deployment")
    place, secret = named(namespace, "namespace"), named(secret, "secret")
    documents = [
        authentication(name, place, secret),
        scaled_object(
            queue,
            name,
            place,
            minReplicaCount=least,
            maxReplicaCount=most,
            pollingInterval=whole_seconds(polling, "polling"),
            cooldownPeriod=whole_seconds(cooldown, "cooldown"),
            fallback={"failureThreshold": 3, "replicas": away},
        ),
    ]
    if app is not None and image is not None:
        documents.insert(0, workers(queue, name, place, secret, told=(checked_app(app), checked_image(image))))
    if shell.json:
        emit(documents)
    else:
        say("---\n".join("\n".join(yaml(one)) + "\n" for one in documents).rstrip("\n"), quiet=shell.quiet)


def plain(queue: str) -> str:
    """A queue's name as Kubernetes takes names."""
    return re.sub(r"[^a-z0-9-]+", "-", queue).strip("-")[:50].rstrip("-") or "queue"


def named(text: str, field: str) -> str:
    if NAME.fullmatch(text) is None:
        hint = "At most 63 of a-z, 0-9 and -, and no - at either end."
        raise ValidationError(f"{field}: {shown(text)} is no name for Kubernetes", hint=hint, field=field)
    return text


def checked_app(text: str) -> str:
    if re.fullmatch(r"[\w.]+:[\w.]+", text) is None:
        raise ValidationError(f"app: {shown(text)} is not MODULE:APP", field="app")
    return text


def checked_image(text: str) -> str:
    if IMAGE.fullmatch(text) is None:
        raise ValidationError(f"image: {shown(text)} is not the name of an image", field="image")
    return text


def whole_seconds(text: str, field: str) -> int:
    return validate.whole(round(seconds(text, field)), field, 1, 86_400)


# --- the documents ----------------------------------------------------------------------------------------------------


def authentication(name: str, namespace: str, secret: str) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"secretTargetRef": [{"parameter": "connection", "name": secret, "key": SECRET_KEY}]},
    }


def query(queue: str) -> str:
    """Its name is one of a-z, 0-9, _, . and -: nothing in it ends a literal."""
    return f"select penstock.target_workers('{queue}')"


def scaled_object(queue: str, name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    """One worker for each that is wanted: an average of 1. Our own policy holds before it goes down, so Kubernetes
    shall not hold a second time; nor shall it be slower than asked on the way up."""
    behavior = {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Percent", "value": 900, "periodSeconds": 15}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
        },
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"name": name},
            **spec,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": [
                {
                    "type": "postgresql",
                    "metricType": "AverageValue",
                    "metadata": {"query": query(queue), "targetQueryValue": "1", "activationTargetQueryValue": "0"},
                    "authenticationRef": {"name": name},
                }
            ],
        },
    }


def workers(queue: str, name: str, namespace: str, secret: str, *, told: tuple[str, str]) -> dict[str, Any]:
    """No number of replicas: that is KEDA's. A worker that is told to go has time to finish."""
    target, image = told
    labels = {"app.kubernetes.io/name": name}
    container = {
        "name": "worker",
        "image": image,
        "args": ["penstock", "work", target, "--queues", queue, "--grace", "60s"],
        "env": [
            {"name": "PENSTOCK_DSN", "valueFrom": {"secretKeyRef": {"name": f"{secret}-worker", "key": SECRET_KEY}}}
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 90, "containers": [container]},
            },
        },
    }


# --- YAML -------------------------------------------------------------------------------------------------------------


def yaml(value: Any, indent: int = 0) -> list[str]:
    """Lines of a document made of dicts, lists, texts and whole numbers. Every text is quoted, as JSON does it, which
    is YAML too: none can be taken for a number, a date or a yes."""
    blank = "  " * indent
    lines = []
    for key, one in value.items():
        if isinstance(one, dict):
            lines += [f"{blank}{key}:", *yaml(one, indent + 1)]
        elif isinstance(one, list):
            lines.append(f"{blank}{key}:")
            for item in one:
                inside = yaml(item, indent + 2) if isinstance(item, dict) else [f"{blank}    {scalar(item)}"]
                lines += [f"{blank}  - {inside[0].lstrip()}", *inside[1:]]
        else:
            lines.append(f"{blank}{key}: {scalar(one)}")
    return lines


def scalar(value: str | int) -> str:
    return str(value) if isinstance(value, int) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


app.command("keda")(keda)
