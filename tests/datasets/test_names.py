import subprocess
import sys

import pytest

from gart.datasets import load, scene_names
from gart.datasets.names import find_name
from gart.errors import UsageError


def test_importing_is_light():
    code = (
        "import sys, gart.datasets, gart.datasets.names\n"
        "heavy = {'torch', 'numpy', 'cv2', 'PIL', 'nerfbaselines'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_list_is_what_nerfbaselines_has():
    import nerfbaselines

    for dataset, scenes in scene_names().items():
        spec = nerfbaselines.get_dataset_spec(dataset)["metadata"]["scenes"]
        assert sorted(scenes) == sorted(scene["id"] for scene in spec)


def test_a_scene_name_stands_for_itself():
    names = [name for scenes in scene_names().values() for name in scenes]
    assert len(names) == len(set(names)) == 40
    assert find_name("garden") == find_name("mipnerf360/garden") == ("mipnerf360", "garden")
    assert find_name("truck") == ("tanksandtemples", "truck")
    assert find_name("playroom") == ("deepblending", "playroom")
    assert find_name("lego") == ("blender", "lego")
    assert find_name("blender/garden") is None
    assert find_name("mipnerf360") is None


@pytest.mark.parametrize(
    ("scene", "near"),
    [("gardn", "garden"), ("mipnerf36/garden", "mipnerf360/garden"), ("dem", "demo")],
)
def test_unknown_names_list_near_ones(scene, near):
    with pytest.raises(UsageError) as error:
        load(scene)
    message = str(error.value)
    assert f"scene '{scene}' is neither an existing folder nor a known name" in message
    assert near in message.split("did you mean")[1].split("?")[0]
    assert message.endswith("gart train --help lists the names")


def test_an_unknown_name_without_near_ones():
    with pytest.raises(UsageError, match=r"known name; gart train --help lists the names$"):
        load("./no/such/zzzzz")


def test_a_file_is_not_a_scene(tmp_path):
    file = tmp_path / "transforms.json"
    file.write_text("{}")
    with pytest.raises(UsageError, match=r"transforms.json is a file; give the folder"):
        load(str(file))
