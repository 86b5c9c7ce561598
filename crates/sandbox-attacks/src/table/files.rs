//! The file interface, led astray from inside.

use crate::{
    Attack, Group,
    Wall::{self, *},
    attack::Way,
    expectation::{device_folder, root_may_be_writable},
    outside::{files, jobs, links},
};

const fn files(name: &'static str, walls: &'static [Wall], tries: &'static str) -> Attack {
    Attack::new(Group::Files, Way::Inside, name, walls, tries)
}

/// All of the group.
pub(super) const ATTACKS: &[Attack] = &[
    files("absolute_paths", &[FilePaths], "Names files outside the places for files")
        .by(Way::Outside(links::absolute_paths))
        .expecting(root_may_be_writable),
    files("parent_paths", &[FilePaths], "Names files outside by way of `..`").by(Way::Outside(links::parent_paths)),
    files("link_as_folder", &[FilePaths], "Plants links to folders outside, alone and in chains")
        .by(Way::Outside(links::link_as_folder))
        .expecting(root_may_be_writable),
    files("link_as_file", &[FilePaths], "Plants links to files outside, to be read, written, removed")
        .by(Way::Outside(links::link_as_file))
        .expecting(root_may_be_writable),
    files(
        "magic_links",
        &[FilePaths, ExecutorHardening],
        "Plants links into /proc, which lead to the executor's root and open files",
    )
    .by(Way::Outside(links::magic_links))
    .expecting(root_may_be_writable),
    files("executors_proc", &[FilePaths, ExecutorHardening], "Has the executor read what /proc says about itself")
        .by(Way::Outside(links::executors_proc)),
    files("swapped_folder", &[FilePaths], "Exchanges a folder for a link while it is used")
        .by(Way::Outside(links::swapped_folder))
        .expecting(root_may_be_writable),
    files("removal_race", &[FilePaths], "Exchanges a folder for a link while it is removed")
        .by(Way::Outside(links::removal_race)),
    files("hard_links", &[FilePaths, MountNamespace], "Plants hard links to files outside")
        .by(Way::Outside(files::hard_links))
        .expecting(root_may_be_writable),
    files("special_files", &[FilePaths], "Plants pipes, sockets and devices, which are read without end")
        .by(Way::Outside(files::special_files)),
    files("odd_names", &[FilePaths], "Uses names that are too long, empty, no text, or hold a NUL")
        .by(Way::Outside(files::odd_names)),
    files("privileged_modes", &[FilePaths], "Has files written with setuid bits")
        .by(Way::Outside(files::privileged_modes)),
    files(
        "sparse_bomb",
        &[FilePaths, DiskLimit],
        "Has files read and written that are all hole and larger than any disk",
    )
    .by(Way::Outside(files::sparse_bomb)),
    files("growing_file", &[FilePaths], "Lets a file grow while it is read").by(Way::Outside(files::growing_file)),
    files("leave_the_place", &[FilePaths], "Has files moved out of their place, and the place removed")
        .by(Way::Outside(files::leave_the_place))
        .expecting(root_may_be_writable),
    files("listing_flood", &[FilePaths], "Makes more files than anybody wants listed, with loops of links")
        .by(Way::Outside(files::listing_flood)),
    files("write_over_others", &[FilePaths], "Has folders, devices and settings of the kernel written over")
        .by(Way::Outside(files::write_over_others))
        .expecting(device_folder),
    files("deep_tree", &[FilePaths, DiskLimit], "Makes 5,000 folders in each other, to be listed and removed")
        .by(Way::Outside(jobs::deep_tree)),
];
