//! A model that others ask, without HTTP.

use std::fs;
use std::thread;

use fathom_app::host::{Host, HostOptions};
use fathom_app::{Machine, Silent, train};
use fathom_base::{
    Continuation, Conversation, Describe, Event, Generate, GenerateRequest, LanguageModel, Numbers, Prompt,
    Sampling, Stop, Tokenize,
};
use fathom_train::recipe::MachineKind;
use serde_json::json;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

#[test]
fn a_host_is_asked_from_any_thread() {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["eval.enabled=false", "model.precision=f32"];
    train(&crate::small(folder.path(), &keys), &train::Order::default(), &Silent).unwrap();
    let run = folder.path().join("run");
    let template = folder.path().join("talk.jinja");
    fs::write(&template, TEMPLATE).unwrap();
    let machine = Machine::of_kind(MachineKind::Cpu, 1, &Silent);
    let options = || HostOptions {
        sequences: 3,
        context_tokens: Some(256),
        template: Some(template.clone()),
        ..HostOptions::new(&run, &machine)
    };
    let host = Host::open_writer(options(), &Silent).unwrap();
    let request = |first: u32| GenerateRequest::greedy((first..first + 9).collect::<Vec<u32>>(), 6);
    let alone: Vec<Vec<u32>> =
        (1..5).map(|first| host.generate_all(vec![request(first)]).unwrap()[0][0].ids.clone()).collect();
    thread::scope(|scope| {
        for (first, alone) in (1..5).zip(&alone) {
            let (host, request) = (&host, request(first));
            scope.spawn(move || assert_eq!(host.generate_all(vec![request]).unwrap()[0][0].ids, *alone));
        }
    });

    // A conversation is rendered by the model's own template.
    let talk = Conversation {
        messages: vec![json!({"role": "user", "content": "the old river"})],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let service = host.service().clone();
    assert_eq!(service.render(&talk).unwrap(), "user: the old river\nassistant:");
    let prompt = Prompt::Conversation(talk.clone());
    let ids = service.ids(&prompt).unwrap();
    let (ticket, events) = host.events(GenerateRequest::greedy(talk, 5)).unwrap();
    let (mut read, mut text, mut stop) = (Vec::new(), String::new(), None);
    for event in events {
        match event {
            Event::Started { prompt, .. } => read = prompt,
            Event::Piece { text: more, .. } => text.push_str(&more),
            Event::Ended { stop: why, .. } => stop = Some(why),
            Event::Done(_) | Event::Failed(_) => {}
        }
    }
    drop(ticket);
    assert_eq!((&read, stop), (&ids, Some(Stop::Length)));
    assert_eq!(host.generate_all(vec![GenerateRequest::greedy(ids.clone(), 5)]).unwrap()[0][0].text, text);

    // Log-likelihoods are those of the model that writes: its own greedy answer is greedy.
    let greedy = Continuation {
        context: ids,
        continuation: host.generate_all(vec![GenerateRequest::greedy(prompt, 4)]).unwrap()[0][0].ids.clone(),
    };
    let found = host.log_likelihoods(std::slice::from_ref(&greedy)).unwrap().remove(0);
    assert!(found.is_greedy() && found.sum() < 0.0 && found.logprobs.len() == greedy.continuation.len());

    // A text that is too long is refused by name, and the host goes on.
    let error = host.look(&[vec![5; 300]], Numbers::Logprobs).unwrap_err().to_string();
    assert!(error.contains("300") && error.contains("256"), "{error}");
    let sampling = Sampling { max_tokens: 240, ignore_eos: true, ..Sampling::default() };
    let long = GenerateRequest::new(vec![1, 2, 3], sampling);
    assert!(host.service().generate_while(vec![long], &|| false).unwrap().is_none());
    assert_eq!(host.service().card().context_tokens, 256);

    // The last handle keeps the thread; without one, requests fail by name.
    drop(host);
    assert_eq!(service.decode(&[65]).unwrap().len(), service.token_bytes(65).len());
}

#[test]
fn a_model_that_cannot_be_opened_is_refused_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::of_kind(MachineKind::Cpu, 1, &Silent);
    let error = Host::open(HostOptions::new(folder.path(), &machine), &Silent).err().unwrap().to_string();
    assert!(error.contains("config.json"), "{error}");
}
