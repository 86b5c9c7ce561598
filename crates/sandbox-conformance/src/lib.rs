//! What every backend must do, tried for real: one suite, run by each of them.
//!
//! A case is a name and a function that panics when a promise is broken. The suite prints like the usual test
//! harness, and returns how many failed.

#![forbid(unsafe_code)]
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stdout, reason = "this crate is a test")]

mod calls;
mod commands;
mod counts;
mod files;
mod limits;
mod lives;
mod presets;
mod programs;
mod roots;
mod walls;
mod workbench;

use std::{
    collections::BTreeSet,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_core::{Backend, Control, Image, policy::SystemCalls};
pub use workbench::Workbench;

/// A variable that the program which runs this suite has in its environment, and that no sandbox may see.
pub const SECRET: &str = "SECRET_OF_THE_SERVER";

/// What is being tried.
#[derive(Clone)]
pub struct Subject {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// A small image that has a shell, for cases that want an image of their own.
    pub image: Option<Image>,
    /// Whose programs a sandbox has that names no image.
    pub programs: Programs,
    /// What this backend cannot hold: it is refused by name, and accepted for all other cases.
    pub unheld: BTreeSet<Control>,
    /// Terminals that one sandbox has at most.
    pub terminals: u64,
}

/// Whose programs a sandbox has that names no image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Those of the machine that the suite runs on.
    OfThisMachine,
    /// Those of an image that the backend was given.
    OfAnImage,
}

type Case = (&'static str, fn(Workbench) -> Pin<Box<dyn Future<Output = ()> + Send>>);

macro_rules! cases {
    ($($module:ident: $($name:ident),* $(,)?;)*) => {
        vec![$($((concat!(stringify!($module), "::", stringify!($name)), |bench| Box::pin($module::$name(bench))),)*)*]
    };
}

fn cases() -> Vec<Case> {
    cases! {
        commands: a_command_runs_and_its_output_comes_back, standard_error_is_apart, exit_codes_and_signals_are_told_apart,
            input_reaches_a_command, variables_and_folder_are_as_asked, binary_output_is_untouched,
            a_gigabyte_of_output_goes_through, a_job_outlives_its_connection, a_terminal_has_a_size_and_is_resized,
            twenty_commands_run_at_once, a_missing_program_is_named, a_whole_tree_is_killed_also_a_daemon,
            who_ignores_sigterm_is_killed_at_the_deadline;
        files: content_and_modes_survive, a_file_with_holes_stays_small, many_files_at_once, links_that_point_out_lead_nowhere,
            names_that_are_not_text_are_listed, what_is_no_file_is_refused, files_belong_to_the_sandboxs_user,
            pip_and_npm_install_as_typed;
        walls: nothing_of_this_machine_shows, the_root_cannot_be_changed, there_is_no_network_but_loopback, a_way_out_leads_to_its_doors_and_nowhere_else,
            no_process_outside_is_seen, the_first_process_cannot_be_touched, kernel_doors_are_closed,
            an_image_folder_can_be_changed_where_the_policy_says, output_can_be_written_but_not_taken_back,
            user_namespaces_and_settings_of_the_kernel_are_out_of_reach, what_tells_machines_apart_is_covered;
        calls: each_profile_refuses_what_it_says, everyday_programs_run_with_every_profile,
            a_process_can_be_traced_only_where_the_policy_says, a_tracer_does_not_reach_the_executor,
            commands_on_their_way_are_not_the_executor_for_a_tracer, who_makes_the_executor_its_tracer_gains_nothing,
            a_profile_of_ones_own_is_held_with_the_floor_beneath;
        roots: this_machines_programs_can_be_changed_in_a_layer_of_ones_own, packages_can_be_installed_and_removed,
            layers_count_as_disk, a_layer_is_never_used_again,
            named_places_can_be_written, places_of_an_image_can_be_written, places_that_cannot_be_are_refused, places_count_as_disk;
        programs: denied_programs_are_gone, denied_links_of_an_image_are_gone, only_listed_programs_are_executed,
            a_list_takes_a_root_that_cannot_be_changed,
            a_list_comes_with_what_its_programs_need;
        limits: memory_is_held, memory_that_has_no_owner_is_held_or_refused, a_fork_bomb_is_held_and_the_executor_still_answers, tmp_is_held, disk_is_held, files_that_were_removed_but_are_open_count,
            files_that_only_a_map_or_a_thread_keeps_count, files_on_their_way_through_a_socket_count,
            files_that_move_while_they_are_measured_count, many_empty_files_count,
            memory_of_a_process_that_lost_its_first_thread_is_held, the_end_by_a_limit_is_told_with_numbers, cpu_is_held,
            time_is_held, strict_refuses_what_is_only_watched;
        counts: watches_of_files_are_not_used_up, the_queue_of_signals_is_not_used_up, terminals_are_not_used_up,
            message_queues_are_not_used_up;
        lives: destroy_leaves_nothing_and_may_be_repeated, nothing_of_an_ended_sandbox_reaches_the_next, no_network_tells_of_the_sandbox_before, the_end_is_noticed, what_lives_is_found_again, use_is_measured,
            fifty_at_once;
        presets: full_isolation, development, build, production, yolo_1, yolo_2, yolo_3, yolo_4, user_added, verified;
    }
}

/// Runs all cases whose names contain `filter`, and returns how many failed.
pub async fn run(subject: Subject, filter: &str) -> usize {
    let cases = cases().into_iter().filter(|(name, _)| name.contains(filter)).collect();
    run_cases(Workbench::new(subject), cases).await
}

/// Runs again, with this set of system calls where a case names none, those that say whether a sandbox can be worked in
/// and holds.
pub async fn run_with(subject: Subject, filter: &str, calls: &SystemCalls) -> usize {
    let wanted = |name: &str| {
        let kind = ["commands::", "files::", "walls::"].iter().any(|kind| name.starts_with(kind));
        kind && !name.ends_with("a_gigabyte_of_output_goes_through")
    };
    let cases = cases().into_iter().filter(|(name, _)| name.contains(filter) && wanted(name)).collect();
    println!("\nwith the system calls of `{calls}`:");
    run_cases(Workbench::new(subject).with_calls(calls.clone()), cases).await
}

async fn run_cases(clean: Workbench, cases: Vec<Case>) -> usize {
    println!("\nrunning {} tests", cases.len());
    let (mut passed, mut failed) = (0, Vec::new());
    let start = Instant::now();
    for (name, case) in cases {
        let bench = clean.another();
        let began = Instant::now();
        let outcome =
            tokio::spawn(AssertUnwindSafe(tokio::time::timeout(Duration::from_secs(120), case(bench.clone())))).await;
        bench.clear().await;
        let took = began.elapsed().as_millis();
        if matches!(outcome, Ok(Ok(()))) {
            passed += 1;
            println!("test {name} ... ok ({took} ms)");
        } else {
            println!(
                "test {name} ... FAILED ({took} ms){}",
                if matches!(outcome, Ok(Err(_))) { ": it hangs" } else { "" }
            );
            failed.push(name);
        }
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {} failed; finished in {:.1?}", failed.len(), start.elapsed());
    failed.len()
}
