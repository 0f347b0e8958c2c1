"""answers: agents send what their own models say to shared questions; the server meta-learns from that alone.

Distillation in place of weights (Jeong et al. 2018, "Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data"; Li and Wang 2019, "FedMD: Heterogenous Federated Learning via
Model Distillation"). Both ends draw the questions x_1 ... x_M from the seed, so asking costs no bits, and one message
per agent is all that is sent, whatever the number of weights and whatever the agents' architectures:

    agent i    a_i = Q(f_i(x_1), ..., f_i(x_M))            outputs, or the logits of a classifier, on 2**bits levels
    server     a task is (x, y); Reptile (Nichol et al. 2018) over many of them:
               phi_t = SGD_steps(theta; x, y_t),   theta <- theta + rate (mean_t phi_t - theta)

Where questions come from a range, answers are values of a smooth function: the server fills in what lies between them
(`training/smoothing`), and trains there. A few agents are a few tasks. More of them are made from the answers: for a
regression by mixing (Yao et al. 2022, "Meta-Learning with Fewer Tasks through Task Interpolation"), for a
classification by new labels (Rajendran et al. 2020, "Meta-Learning Requires Meta-Augmentation", permute them; here they
are weighed at random, which permutes them too):

    regression       y = l + u (m - l + c sum_i w_i (a_i - m)),   m = mean_i a_i,   l = mean of m over the inputs,
                     w_i normal; c <= 1 keeps y in the agents' range; u from 0 to 1, large ones more often
    classification   y = softmax(W [a_1; ...; a_N]),  W normal, the logits [M, N classes] centred and scaled to 1

Mixtures reach beyond the agents, as new tasks may, up to their range; u makes flatter ones of them.

`invented` is the control that sends nothing: tasks from a prior that knows the inputs' range and the outputs' scale.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.codecs.uniform import BITS, Uniform
from fewjoule.errors import Count, InputError, Positive, count_or_none, is_whole
from fewjoule.methods.average import random_start
from fewjoule.methods.method import Broadcast, Everyone, Info, Method, Start, Turn, factory, own_model_kept, shared_key
from fewjoule.models.c_source import Asked, Image, check_size
from fewjoule.models.model import Model
from fewjoule.tasks.questions import image_tables, read_questions
from fewjoule.tasks.samples import AgentData, Samples
from fewjoule.training.descent import Loss, descend, optimiser
from fewjoule.training.smoothing import smoothed

CLIPPED_AT = 98.0
"""Percentile of the logits' magnitudes beyond which they are clipped, so that a few large ones do not take all
levels."""
LENGTHS = (0.1, 0.15)
"""Over which share of the inputs' range an invented function changes."""
FEATURES = 64  # cosines of an invented function
GAIN = 10.0  # of the weights of a random network, so that its classes are clear

DrawTask = Callable[[Array], Array]
"""From a key to one task's targets at the questions: [M, outputs], values or probabilities."""


def _check_bits(name: str, value: Any) -> None:
    if not is_whole(value) or value not in BITS:
        raise InputError(f"{name} must be a whole number from {BITS[0]} to {BITS[-1]}, got {value!r}.")


@factory
def answers(
    *,
    questions: Any = "range:-1:1",
    number: Count = 20,
    bits: Annotated[int, _check_bits] = 6,
    classes: Annotated[int | None, count_or_none] = None,
    between: Annotated[int | None, count_or_none] = 10,
    episodes: Count = 1200,
    tasks: Count = 2,
    steps: Count = 50,
    learning_rate: Positive = 0.01,
    meta_learning_rate: Positive = 1.0,
) -> Method:
    """One message per agent: its model's answers to `number` questions (`fewjoule.tasks.questions`), `bits` each.

    A classifier sends the logits of its `classes` most frequent classes (None: of all). For a regression over a range
    the server fills the answers in at `between` random inputs for every question (None: it trains at the questions
    alone). It runs `episodes` of Reptile over `tasks` made-up tasks with `steps` of `learning_rate`, each on as many
    inputs as there are questions. `learning_rate` is best that of the later fine-tuning; `meta_learning_rate` falls
    linearly to 0.
    """
    asked, codec = read_questions(questions, number), Uniform(bits)

    def init(start: Start, probes: Any) -> tuple[Any, Broadcast]:
        own = () if asked.given is None else (jnp.asarray(asked.given, jnp.float32),)
        return Broadcast(start.model, own), Broadcast(start.model, own)

    def agent(loss: Loss, own: Callable[[Array], Array], broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        outputs = own(asked.draw(_question_key(broadcast.shared), data.train.x.shape[1:]))
        if jnp.issubdtype(data.train.y.dtype, jnp.integer):
            outputs = clipped(own_classes(outputs, data.train, classes))
        message, packed, size_bytes = codec.apply(outputs.reshape(-1), key)
        return own, message, Info(jnp.full((), jnp.nan), broadcast.model, packed=[packed], size_bytes=size_bytes)

    def server(state: Broadcast, everyone: Everyone) -> tuple[Any, Broadcast]:
        return state, state

    def learn(model: Model, start: Array, everyone: Everyone, key: Array) -> Array:
        x = asked.draw(_question_key(key), _input_shape(model))
        order = jnp.argsort(everyone.messages @ jax.random.normal(key, everyone.messages.shape[1:]))  # not who is first
        told, present = everyone.messages[order].reshape(len(order), asked.number, -1), everyone.present[order]
        if model.loss_name == "mse":
            if between is not None and asked.is_range:
                at = asked.between(_between_key(key), _input_shape(model), between * asked.number)
                x, told = at, smoothed(x, told, at, present, 2**bits)
            draw = mixed(told, present)
        else:
            outputs = jax.eval_shape(model.apply, start, x).shape[-1]
            draw = projected(told, present, outputs)
        meta = reptile_over(draw, model, start, x, _learning_key(key), **learning)
        return jnp.where(present.any(), meta, start)

    learning: dict[str, Any] = {
        "episodes": episodes, "tasks": tasks, "steps": steps, "batch": asked.number, "learning_rate": learning_rate,
        "meta_learning_rate": meta_learning_rate,
    }  # fmt: skip
    return Method(
        "answers", 1, "random", agent, server, init, own_model_kept, needs_local=True, asks=True, combine="all",
        codecs=(codec, None, None), learn=learn,
    )  # fmt: skip


@factory
def invented(
    *,
    questions: Any = "range:-1:1",
    number: Count = 20,
    scale: Positive = 1.0,
    between: Annotated[int | None, count_or_none] = 10,
    episodes: Count = 1200,
    tasks: Count = 2,
    steps: Count = 50,
    learning_rate: Positive = 0.01,
    meta_learning_rate: Positive = 1.0,
) -> Method:
    """The control without a message: as `answers`, but the server makes all tasks up.

    For a regression, smooth random functions with values up to about `scale` (random Fourier features, Rahimi and Recht
    2007); for a classification, random networks of the model's own architecture.
    """
    asked = read_questions(questions, number)

    def learn(model: Model, start: Array, nothing: None, key: Array) -> Array:
        x = asked.draw(_question_key(key), _input_shape(model))
        if model.loss_name == "mse" and between is not None and asked.is_range:
            x = asked.between(_between_key(key), _input_shape(model), between * asked.number)
        outputs = jax.eval_shape(model.apply, start, x).shape[-1]
        draw = smooth(x, outputs, scale) if model.loss_name == "mse" else random_network(model, x)
        return reptile_over(draw, model, start, x, _learning_key(key), **learning)

    learning: dict[str, Any] = {
        "episodes": episodes, "tasks": tasks, "steps": steps, "batch": asked.number, "learning_rate": learning_rate,
        "meta_learning_rate": meta_learning_rate,
    }  # fmt: skip
    return replace(random_start(), name="invented", learn=learn)


def asked_of(model: Model, method: Method, seed: int) -> Asked:
    """What a device needs to be an agent of this method, as C: the questions of this seed and how they are answered.

    Random images are drawn on the device, from the few random numbers that they are made of.
    """
    settings, shape, key = dict(method.settings), _input_shape(model), _question_key(shared_key(seed))
    asked, codec = read_questions(settings["questions"], settings["number"]), Uniform(settings["bits"])

    def tables(key: Array) -> dict[str, Array]:
        return image_tables(asked, key) if asked.sides else {"questions": asked.draw(key, shape)}

    jax.eval_shape(lambda key: asked.draw(key, shape), key)  # refuses questions that the model does not take
    check_size("numbers in its questions", sum(table.size for table in jax.eval_shape(tables, key).values()))
    outputs = model.architecture.layers[-1].outputs
    classes = settings["classes"] if model.loss_name == "cross_entropy" else None
    told = asked.number * (outputs if classes is None else min(classes, outputs))
    image = Image(asked.kind, asked.sides) if asked.sides else None
    written = {name: np.asarray(table) for name, table in jax.jit(tables)(key).items()}
    return Asked(asked.number, written, codec.bits, classes, codec.most_bytes(told), image)


def reptile_over(
    draw: DrawTask, model: Model, start: Array, x: Array, key: Array, *,
    episodes: int, tasks: int, steps: int, batch: int, learning_rate: float, meta_learning_rate: float,
) -> Array:  # fmt: skip
    """Reptile from `start` over tasks that `draw` makes up anew in every episode, each step on `batch` inputs."""
    by, mask = optimiser("sgd", learning_rate), jnp.ones(len(x))
    loss = model.loss if model.loss_name == "mse" else _soft_cross_entropy(model)

    def adapted(theta: Array, key: Array) -> Array:
        task, order = jax.random.split(key)
        few = batch if batch < len(x) else None  # all
        return descend(loss, theta, Samples(x, draw(task), mask), order, by=by, steps=steps, batch=few).vector

    def episode(theta: Array, at: tuple[Array, Array]) -> tuple[Array, None]:
        key, left = at
        each = jax.vmap(lambda k: adapted(theta, k))(jax.random.split(key, tasks))
        return theta + meta_learning_rate * left * (each.mean(0) - theta), None

    left = 1 - jnp.arange(episodes, dtype=jnp.float32) / episodes
    return jax.lax.scan(episode, start, (jax.random.split(key, episodes), left))[0]


def mixed(told: Array, present: Array) -> DrawTask:
    """Tasks from the answers [agents, M, outputs] of those present: their mean and a random part of how they differ,
    by a random share as far from their level."""
    there = (present > 0)[:, None, None]
    mean = jnp.where(there, told, 0).sum(0) / jnp.maximum(present.sum(), 1)
    apart = jnp.where(there, told - mean, 0)
    low = jnp.where(there, told, jnp.inf).min((0, 1))
    high = jnp.where(there, told, -jnp.inf).max((0, 1))
    level = mean.mean(0)

    def draw(key: Array) -> Array:
        mixing, flattening = jax.random.split(key)
        step = jnp.tensordot(jax.random.normal(mixing, present.shape), apart, 1)
        room = jnp.where(step > 0, high - mean, low - mean)
        fits = jnp.where(jnp.abs(step) > jnp.abs(room), room / jnp.where(step == 0, 1, step), 1).min()
        share = jnp.sqrt(jax.random.uniform(flattening))
        return level + share * (mean + fits * step - level)

    return draw


def projected(told: Array, present: Array, outputs: int) -> DrawTask:
    """Tasks from the logits [agents, M, classes] of those present: new classes, each a random weighing of all of them.

    Features are centred, so that no class is rare, and scaled to a standard deviation of 1.
    """
    there = (present > 0)[:, None, None]
    features = jnp.moveaxis(jnp.where(there, told, 0), 0, 1).reshape(told.shape[1], -1)
    features = features - features.mean(0)
    variance = (features**2).mean() / jnp.maximum(present.mean(), 1e-6)  # of those present
    features = features / jnp.maximum(jnp.sqrt(variance), 1e-6)

    def draw(key: Array) -> Array:
        return jax.nn.softmax(features @ jax.random.normal(key, (features.shape[1], outputs)))

    return draw


def smooth(x: Array, outputs: int, scale: float) -> DrawTask:
    """Smooth random functions of the inputs, centred at 0, with a largest magnitude of up to `scale`."""
    flat = x.reshape(len(x), -1)
    width = jnp.maximum(flat.max() - flat.min(), 1e-6)

    def draw(key: Array) -> Array:
        keys = jax.random.split(key, 5)
        length = width * jax.random.uniform(keys[0], minval=LENGTHS[0], maxval=LENGTHS[1])
        waves = jax.random.normal(keys[1], (flat.shape[1], FEATURES)) / length
        shifts = jax.random.uniform(keys[2], (FEATURES,), maxval=2 * jnp.pi)
        y = jnp.cos(flat @ waves + shifts) @ jax.random.normal(keys[3], (FEATURES, outputs))
        return y * scale * jax.random.uniform(keys[4]) / jnp.maximum(jnp.abs(y).max(), 1e-6)

    return draw


def random_network(model: Model, x: Array) -> DrawTask:
    """New classes from what networks of the model's architecture with large random weights say, as from an agent's."""

    def draw(key: Array) -> Array:
        net, weighing = jax.random.split(key)
        logits = clipped(model.apply(GAIN * model.init(net), x))
        return projected(logits[None], jnp.ones(1), logits.shape[-1])(weighing)

    return draw


def own_classes(logits: Array, samples: Samples, classes: int | None) -> Array:
    """The logits [M, classes] of the classes that an agent has most samples of, in the order of their numbers."""
    if classes is None or classes >= logits.shape[-1]:
        return logits
    owned = jax.nn.one_hot(samples.y, logits.shape[-1]) * samples.mask[:, None]
    return logits[:, jnp.sort(jax.lax.top_k(owned.sum(0), classes)[1])]


def clipped(logits: Array) -> Array:
    """Logits around 0 for each question, without the largest few of all."""
    logits = logits - logits.mean(-1, keepdims=True)
    most = jnp.percentile(jnp.abs(logits), CLIPPED_AT)
    return jnp.clip(logits, -most, most)


def _soft_cross_entropy(model: Model) -> Loss:
    """Cross entropy in nats to targets that are probabilities."""

    def loss(vector: Array, samples: Samples) -> Array:
        return -(samples.y * jax.nn.log_softmax(model.apply(vector, samples.x))).sum(-1).mean()

    return loss


def _input_shape(model: Model) -> tuple[int, ...]:
    if model.input_shape is None:
        raise InputError("answers needs to know the shape of the model's inputs; give Model(..., input_shape=...).")
    return model.input_shape


def _question_key(shared: Array) -> Array:
    return jax.random.fold_in(shared, 0)


def _between_key(shared: Array) -> Array:
    return jax.random.fold_in(shared, 2)


def _learning_key(shared: Array) -> Array:
    return jax.random.fold_in(shared, 1)
