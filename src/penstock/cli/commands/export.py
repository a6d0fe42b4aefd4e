"""`penstock export` writes what other tools read: manifests for KEDA here, and what export_metrics.py adds."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.terminal.options import QueueName, Shell, parse_seconds, with_shell
from penstock.cli.terminal.output import print_json, print_line
from penstock.errors import ValidationError, shown
from penstock.scaler.policy.signals import MAX_WORKERS

app = typer.Typer(
    help="Write what other tools read: metrics, alerts and a dashboard, and manifests that act on decisions.",
    no_args_is_help=True,
)

NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # accepted by Kubernetes everywhere
IMAGE_PATTERN = re.compile(r"[\w][\w./:@-]{0,254}")
SECRET_KEY = "dsn"  # noqa: S105 - the name of a key


@with_shell
def keda(
    shell: Shell,
    queue: QueueName,
    *,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:APP", help="Add a Deployment of `penstock work`; it needs --image.", show_default=False
        ),
    ] = None,
    image: Annotated[str | None, typer.Option(help="The image of its containers.", show_default=False)] = None,
    deployment: Annotated[
        str | None, typer.Option(help="The Deployment to scale; default: penstock-QUEUE.", show_default=False)
    ] = None,
    namespace: Annotated[str, typer.Option(help="The namespace.")] = "default",
    secret: Annotated[str, typer.Option(help="The Secret whose key dsn holds the DSN of a reader.")] = "penstock",  # noqa: S107 - the name of a Secret
    min_workers: Annotated[int, typer.Option(help="The smallest number of workers.")] = 0,
    max_workers: Annotated[int, typer.Option(help="The largest number of workers.")] = 10,
    polling: Annotated[str, typer.Option(help="How often KEDA asks.")] = "5s",
    cooldown: Annotated[str, typer.Option(help="How long KEDA waits before it stops the last worker.")] = "60s",
    fallback: Annotated[
        int | None,
        typer.Option(
            help="The number of workers while PostgreSQL does not answer KEDA; default: at least one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a ScaledObject and a TriggerAuthentication: KEDA asks PostgreSQL how many workers the scaler wants.

    A scaler must run to decide that: `penstock scale MODULE:APP --advise`. This command reads no database.

    Example: penstock export keda mail --app shop.tasks:app --image registry.example/shop:1 | kubectl apply -f -
    """
    queue = validate.queue_name(queue)
    if (app is None) != (image is None):
        raise ValidationError("app, image: a Deployment needs both", field="app" if app is None else "image")
    least = validate.whole(min_workers, "min_workers", 0, MAX_WORKERS)
    most = validate.whole(max_workers, "max_workers", max(1, least), MAX_WORKERS)
    away = max(1, least) if fallback is None else validate.whole(fallback, "fallback", 0, most)
    name = check_name(deployment or f"penstock-{make_kubernetes_name(queue)}", "deployment")
    namespace, secret = check_name(namespace, "namespace"), check_name(secret, "secret")
    documents = [
        make_authentication(name, namespace, secret),
        make_scaled_object(
            queue,
            name,
            namespace,
            minReplicaCount=least,
            maxReplicaCount=most,
            pollingInterval=parse_whole_seconds(polling, "polling"),
            cooldownPeriod=parse_whole_seconds(cooldown, "cooldown"),
            fallback={"failureThreshold": 3, "replicas": away},
        ),
    ]
    if app is not None and image is not None:
        target, image = check_app(app), check_image(image)
        documents.insert(0, make_deployment(queue, name, namespace, secret, target=target, image=image))
    if shell.json:
        print_json(documents)
    else:
        print_line(
            "---\n".join("\n".join(format_yaml(one)) + "\n" for one in documents).rstrip("\n"), quiet=shell.quiet
        )


def make_kubernetes_name(queue: str) -> str:
    """Makes a name for Kubernetes from the name of a queue."""
    return re.sub(r"[^a-z0-9-]+", "-", queue).strip("-")[:50].rstrip("-") or "queue"


def check_name(text: str, field: str) -> str:
    if NAME_PATTERN.fullmatch(text) is None:
        hint = "At most 63 of a-z, 0-9 and -, and no - at either end."
        raise ValidationError(f"{field}: {shown(text)} is not a name for Kubernetes", hint=hint, field=field)
    return text


def check_app(text: str) -> str:
    if re.fullmatch(r"[\w.]+:[\w.]+", text) is None:
        raise ValidationError(f"app: {shown(text)} is not MODULE:APP", field="app")
    return text


def check_image(text: str) -> str:
    if IMAGE_PATTERN.fullmatch(text) is None:
        raise ValidationError(f"image: {shown(text)} is not the name of an image", field="image")
    return text


def parse_whole_seconds(text: str, field: str) -> int:
    return validate.whole(round(parse_seconds(text, field)), field, 1, 86_400)


# --- the documents ----------------------------------------------------------------------------------------------------


def make_authentication(name: str, namespace: str, secret: str) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"secretTargetRef": [{"parameter": "connection", "name": secret, "key": SECRET_KEY}]},
    }


def make_query(queue: str) -> str:
    """Makes KEDA's query. The name of a queue has only a-z, 0-9, _, . and -, so it cannot end the literal."""
    return f"select penstock.target_workers('{queue}')"


def make_scaled_object(queue: str, name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    """Makes the ScaledObject. An average of 1 means one worker for each that the scaler wants.

    Our policy waits before it stops workers, so Kubernetes must not wait again; nor must it start them more slowly.
    """
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
                    "metadata": {
                        "query": make_query(queue),
                        "targetQueryValue": "1",
                        "activationTargetQueryValue": "0",
                    },
                    "authenticationRef": {"name": name},
                }
            ],
        },
    }


def make_deployment(queue: str, name: str, namespace: str, secret: str, *, target: str, image: str) -> dict[str, Any]:
    """Makes the Deployment. KEDA sets its replicas. A worker that is stopped has time to finish."""
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


def format_yaml(value: Any, indent: int = 0) -> list[str]:
    """Writes dicts, lists, texts and whole numbers as lines of YAML.

    Every text is quoted as in JSON, which is also YAML, so none can be read as a number, a date or a boolean.
    """
    blank = "  " * indent
    lines = []
    for key, one in value.items():
        if isinstance(one, dict):
            lines += [f"{blank}{key}:", *format_yaml(one, indent + 1)]
        elif isinstance(one, list):
            lines.append(f"{blank}{key}:")
            for item in one:
                inside = (
                    format_yaml(item, indent + 2) if isinstance(item, dict) else [f"{blank}    {format_scalar(item)}"]
                )
                lines += [f"{blank}  - {inside[0].lstrip()}", *inside[1:]]
        else:
            lines.append(f"{blank}{key}: {format_scalar(one)}")
    return lines


def format_scalar(value: str | int) -> str:
    return str(value) if isinstance(value, int) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


app.command("keda")(keda)
