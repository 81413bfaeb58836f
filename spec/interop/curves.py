"""The same steps in tf-keras: from the weights and on the batches that curves.lua wrote.

usage: curves.py DIRECTORY      writes NAME.keras.csv, fails when losses differ by 1e-3 or more
"""
import glob
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf
import tf_keras as keras

DIR = sys.argv[1]
STEPS = 50
L = keras.layers


def load(pattern):
    (path,) = glob.glob(os.path.join(DIR, pattern + ".*f64"))
    shape = [int(n) for n in os.path.basename(path)[len(pattern) + 1 : -4].split(".") if n]
    return np.fromfile(path, "<f8").reshape(shape)


def penguins():
    model = keras.Sequential([L.Dense(16, activation="relu", input_shape=(4,)), L.Dense(3)])
    return model, keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def movietweetings():
    films = load("movietweetings.w02").shape[0]

    def rows(n, size, penalty):
        return L.Embedding(n, size, activity_regularizer=keras.regularizers.L2(penalty))

    user, film = L.Input(()), L.Input(())
    taste = L.Dot(axes=1)([rows(16555, 16, 0.2)(user), rows(films, 16, 0.2)(film)])
    bias = rows(16555, 1, 0.01)(user) + rows(films, 1, 0.01)(film)
    rate = keras.optimizers.schedules.PolynomialDecay(8.0, 2816, 0.4)
    return keras.Model([user, film], taste + bias + 7.323), keras.optimizers.SGD(rate), keras.losses.MeanSquaredError()


def optdigits():
    keras.backend.set_floatx("float64")
    stack = [L.Input((8, 8, 1))]
    for i, filters in enumerate((16, 32, 64)):
        stack += [L.Conv2D(filters, 3, padding="same", use_bias=False), L.BatchNormalization(momentum=0.9)]
        stack += [L.Activation("relu")] + ([L.MaxPooling2D(2)] if i else [])
    rate = keras.optimizers.schedules.CosineDecay(3e-3, 720)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.Sequential(stack + [L.Flatten(), L.Dense(10)]), keras.optimizers.Adam(rate), loss


def adult():
    words, size = load("adult.w01").shape
    ids, numbers = L.Input((12,)), L.Input((5,))
    x = L.Concatenate()([L.Flatten()(L.Embedding(words, size)(ids)), numbers])
    for units in (64, 32):
        x = L.Dense(units, activation="relu")(x)
    model = keras.Model([ids, numbers], L.Dense(1, activation="sigmoid")(x))
    return model, keras.optimizers.Adam(0.002), keras.losses.BinaryCrossentropy()


MODELS = {"penguins": penguins, "movietweetings": movietweetings, "adult": adult, "optdigits": optdigits}


def place(model, name):
    """Give the model the weights; both sides list them layer by layer."""
    given = [load("%s.w%02d" % (name, i + 1)) for i in range(len(model.weights))]
    for have, want in zip(model.weights, given):
        assert tuple(have.shape) == want.shape, (name, have.name, have.shape, want.shape)
    model.set_weights(given)


def train(name):
    model, optimizer, loss_of = MODELS[name]()
    place(model, name)
    inputs = len(model.inputs)

    @tf.function(reduce_retracing=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
            if model.losses:
                loss += tf.add_n(model.losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    losses = []
    for i in range(1, STEPS + 1):
        x = [load("%s.x%d.%02d" % (name, k + 1, i)).astype(keras.backend.floatx()) for k in range(inputs)]
        losses.append(float(step(x if inputs > 1 else x[0], load("%s.y.%02d" % (name, i)))))
    with open(os.path.join(DIR, name + ".keras.csv"), "w") as f:
        f.write("".join("%.9g\n" % x for x in losses))
    return np.array(losses)


worst = 0.0
for name in MODELS:
    ours = np.loadtxt(os.path.join(DIR, name + ".tidemill.csv"))
    apart = float(np.abs(ours - train(name)).max())
    worst = max(worst, apart)
    print("%s: loss %.4f to %.4f in %d steps, at most %.2g from tf-keras" % (name, ours[0], ours[-1], len(ours), apart))
assert worst < 1e-3, "losses differ by 1e-3 or more"
